# SPDX-License-Identifier: BSD-3-Clause
"""Decoders with their cache as files: onnxruntime chooses the tokens that torch chooses."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import transformers

import blockscale as bs
from blockscale.export.to_onnx.decoder import (
    Decoder,
    decoder_of,
    drop_config,
    genai_config,
    name_inputs,
)
from tests.export.to_onnx.decoders import SMALL, model_of, session

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


def generated(path: Path, ids: Any, mask: Any, count: int) -> Any:
    """Greedy tokens [rows, count] after prompts [rows, tokens], one by one, by a file."""
    file = session(path)
    given = {each.name: each.shape for each in file.get_inputs()}
    past = {
        name: np.zeros((len(ids), shape[1], 0, shape[3]), np.float32)
        for name, shape in given.items()
        if name.startswith("past_key_values")
    }
    tokens, found = ids, []
    for _ in range(count):
        feed = {"input_ids": tokens, "attention_mask": mask, **past}
        if "position_ids" in given:
            positions = np.maximum(mask.cumsum(1) - 1, 0)[:, -tokens.shape[1] :]
            feed["position_ids"] = positions
        logits, *present = file.run(None, feed)
        past = dict(zip(past, present, strict=True))
        tokens = logits[:, -1].argmax(-1)[:, None]
        mask = np.concatenate([mask, np.ones_like(tokens)], 1)
        found.append(tokens)
    return np.concatenate(found, 1)


def check_tokens(model: Any, folder: Path, count: int = 64) -> Path:
    path = folder / "model.onnx"
    bs.export.onnx(model, path, cache=True)
    onnx.checker.check_model(str(path), full_check=True)
    ids = torch.randint(1, 96, (3, 7), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, :3] = 0  # a shorter text, filled on its left
    expected = model.generate(
        ids, attention_mask=mask, max_new_tokens=count, do_sample=False, eos_token_id=None
    )
    assert len({*expected[0, 7:].tolist()}) > 4
    found = generated(path, ids.numpy(), mask.numpy(), count)
    assert (found == expected[:, 7:].numpy()).all()
    return path


@pytest.mark.slow
def test_names_and_sizes(tmp_path: Path) -> None:
    model = model_of("qwen2")  # with biases
    bs.quantize_(model, bs.Recipe("int4:group32:fp32", skip=["lm_head"]))
    path = check_tokens(model, tmp_path)
    graph = onnx.load(str(path)).graph
    sizes = {
        value.name: [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    }
    pair = ["batch_size", 2, "past_sequence_length", 16]
    assert sizes["past_key_values.1.value"] == pair
    assert sizes["present.1.key"] == [
        "batch_size", 2, "past_sequence_length + sequence_length", 16,
    ]  # fmt: skip
    assert sizes["attention_mask"] == ["batch_size", "total_sequence_length"]
    assert sizes["logits"] == ["batch_size", "sequence_length", 96]
    weights = {each.name: each.data_type for each in graph.initializer}
    name = "model.layers.1.self_attn.q_proj.weight.codes"  # the model's own names
    assert weights[name] == onnx.TensorProto.INT4
    assert "forward" not in vars(model)  # as it was
    config = json.loads((tmp_path / "genai_config.json").read_text())
    assert config == genai_config(decoder_of(model), "model.onnx")


def test_what_generators_read_beside_the_file() -> None:
    model = model_of("llama", eos_token_id=[2, 5], bos_token_id=1)
    model.generation_config.pad_token_id = model.config.pad_token_id = None
    told = genai_config(decoder_of(model), "decoder.onnx")["model"]
    own = told.pop("decoder")
    assert told == {
        "type": "decoder", "vocab_size": 96, "context_length": 128, "bos_token_id": 1,
        "eos_token_id": [2, 5], "pad_token_id": 2,
    }  # fmt: skip
    assert own["filename"] == "decoder.onnx"
    assert (own["num_attention_heads"], own["num_key_value_heads"], own["head_size"]) == (4, 2, 16)
    assert own["inputs"]["past_value_names"] % 1 in decoder_of(model).inputs
    assert own["outputs"]["present_key_names"] % 1 in decoder_of(model).outputs


def graph_of(*inputs: tuple[str, list[Any]]) -> Any:
    values = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, sizes)
        for name, sizes in inputs
    ]
    past = values[-1].name
    nodes = [onnx.helper.make_node("Concat", [past, "k"], ["present.0.key"], axis=2)]
    output = onnx.helper.make_tensor_value_info("present.0.key", 1, ["s0", 2, "s1 + s9", 16])
    return onnx.helper.make_graph(nodes, "g", values, [output])


def test_inputs_get_their_names() -> None:
    decoder = Decoder(torch.nn.Linear(1, 1), (((2, 16), (2, 16)),), positions=False)
    pair = ["s0", 2, "s9", 16]
    graph = graph_of(("a", ["s0", "s1"]), ("b", ["s0", "s2"]), ("c", pair), ("d", pair))
    name_inputs(graph, decoder)
    assert [each.name for each in graph.input] == decoder.inputs
    assert list(graph.node[0].input) == ["past_key_values.0.value", "k"]
    sizes = [each.dim_param for each in graph.output[0].type.tensor_type.shape.dim]
    assert sizes == ["batch_size", "", "sequence_length + past_sequence_length", ""]
    fixed = graph_of(("a", ["s0", 3]), ("b", ["s0", "s2"]), ("c", pair), ("d", pair))
    with pytest.raises(ValueError, match=r"for one sequence_length \(3 in input_ids\)"):
        name_inputs(fixed, decoder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "weights"),
    [
        ("llama", "float"),
        ("llama", "int4:group32:fp32"),
        ("qwen2", "int8_channel"),
        ("qwen2", "nvfp4"),
        ("qwen3", "fp8"),
        ("qwen3", "mxfp4"),
        ("mistral", "int8_channel"),
        ("gemma3", "int8_channel"),
        ("gpt2", "int4:group32:fp32"),
        ("bloom", "int8_channel"),
    ],
)
def test_kinds_and_formats(kind: str, weights: str, tmp_path: Path) -> None:
    model = model_of(kind)
    if weights != "float":
        bs.quantize_(model, weights)
    check_tokens(model, tmp_path)


@pytest.mark.slow
def test_a_model_in_bfloat16_computes_in_float32(tmp_path: Path) -> None:
    model = model_of("llama").bfloat16()
    bs.quantize_(model, "mxfp4")
    path = tmp_path / "model.onnx"
    with pytest.warns(UserWarning, match="computes in float32"):
        bs.export.onnx(model, path, cache=True)
    ids = torch.randint(1, 96, (2, 5))
    expected = model.float().generate(ids, max_new_tokens=24, do_sample=False, eos_token_id=None)
    found = generated(path, ids.numpy(), np.ones((2, 5), np.int64), 24)
    assert (found == expected[:, 5:].numpy()).all()


def refused(model: Any, match: str, kind: type[Exception] = ValueError) -> None:
    with pytest.raises(kind, match=match):
        decoder_of(model)


def test_what_has_no_keys_and_values_is_refused() -> None:
    torch.manual_seed(0)
    refused(torch.nn.Linear(4, 4), "language model of transformers", TypeError)
    small = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1}
    mamba = transformers.MambaConfig(**small, state_size=4)
    refused(transformers.MambaForCausalLM(mamba).eval(), "takes no past_key_values")
    t5 = transformers.T5Config(
        vocab_size=32, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2,
        decoder_start_token_id=0,
    )  # fmt: skip
    refused(transformers.T5ForConditionalGeneration(t5).eval(), "has an encoder")


def test_layers_that_remember_otherwise_are_refused() -> None:
    config = transformers.Qwen3NextConfig(
        **SMALL, layer_types=["linear_attention", "full_attention"], num_experts=2,
        num_experts_per_tok=1, moe_intermediate_size=16, shared_expert_intermediate_size=16,
        linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=8,
        linear_value_head_dim=8,
    )  # fmt: skip
    model = transformers.Qwen3NextForCausalLM(config).eval()
    refused(model, "layer 0 has a cache of the class LinearAttentionLayer")


def test_rotations_that_change_are_refused() -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    refused(model_of("llama", rope_parameters=rope), "rope_type 'dynamic'")


def test_what_is_in_the_way(tmp_path: Path) -> None:
    model = model_of("llama")
    ids = {"input_ids": torch.ones((2, 3), dtype=torch.int64)}
    with pytest.raises(ValueError, match="an example of its own"):
        bs.export.onnx(model, tmp_path / "model.onnx", ids, cache=True)
    (tmp_path / "genai_config.json").write_text("{}")
    with pytest.raises(FileExistsError, match=r"genai_config\.json exists"):
        bs.export.onnx(model, tmp_path / "model.onnx", cache=True)
    assert [each.name for each in tmp_path.iterdir()] == ["genai_config.json"]
    refused(model.train(), "is in training mode")


def test_a_config_of_a_file_that_is_replaced_goes_with_it(tmp_path: Path) -> None:
    """One that names another file, and what is no such config, stays."""
    path, config = tmp_path / "model.onnx", tmp_path / "genai_config.json"
    other = json.dumps({"model": {"decoder": {"filename": "other.onnx"}}})
    for text in ("{}", "[]", "no json", other):
        config.write_text(text)
        drop_config(path)
        assert config.read_text() == text
    config.write_text(json.dumps({"model": {"decoder": {"filename": "model.onnx"}}}))
    with pytest.warns(
        UserWarning, match=r"genai_config\.json was of the file that model\.onnx rep"
    ):
        bs.export.onnx(torch.nn.Linear(4, 4).eval(), path, torch.zeros(1, 4), overwrite=True)
    assert [each.name for each in tmp_path.iterdir()] == ["model.onnx"]
