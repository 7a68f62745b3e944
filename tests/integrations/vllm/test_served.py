# SPDX-License-Identifier: BSD-3-Clause
"""What a server's layers get of a directory: the numbers of the model that loads it here."""

from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from transformers import (
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

import blockscale as bs
from blockscale.core.parse import parse
from blockscale.files import stored_model
from blockscale.files.stored_model import open_stored_model
from blockscale.integrations.config import quantized_copy
from blockscale.integrations.vllm.experts import Biases, ExpertMatrices, Experts, clamped_swiglu
from blockscale.integrations.vllm.served import Part, Served, Slice
from blockscale.integrations.vllm.served import _layers as layers_of
from blockscale.layers.store import QWeight

pytestmark = pytest.mark.filterwarnings("ignore")
ATTENTION = "model.layers.0.self_attn"
QKV = [f"{ATTENTION}.{each}_proj" for each in "qkv"]
COMMON = {
    "vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96,
}  # fmt: skip


def llama(**options: Any) -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**COMMON, **options)).eval()


def directory(model: Any, recipe: Any, folder: Path) -> tuple[Served, Any]:
    """A model's directory, quantized, and the model that has it."""
    model.save_pretrained(folder / "float")
    bs.quantize_directory(folder / "float", folder / "ours", recipe)
    bs.load(model, folder / "ours")
    return Served(open_stored_model(folder / "ours")), model


def saved(model: Any, recipe: Any, folder: Path) -> tuple[Served, Any]:
    """The same of a quantized model that was saved, whose experts are stacks."""
    bs.quantize_(model, recipe)
    model.save_pretrained(folder / "ours", save_original_format=False)
    return Served(open_stored_model(folder / "ours")), model


@pytest.mark.parametrize("recipe", ["nvfp4", bs.Recipe("int8_channel", input="int8_token")])
def test_joined_layers_are_each_layer_after_the_other(recipe: Any, tmp_path: Path) -> None:
    served, model = directory(llama(attention_bias=True), recipe, tmp_path)
    shards = served.shards(QKV, "qkv_proj")
    assert shards == [f"{each}.weight" for each in QKV]
    layers = [model.get_submodule(each) for each in QKV]
    joined = served.joined(shards, torch.float32)
    x = torch.randn(5, 64)
    bias = torch.cat([layer.bias for layer in layers])
    assert torch.equal(joined(x, bias), torch.cat([layer(x) for layer in layers], -1))
    assert joined.sizes == [64, 32, 32]


@pytest.mark.slow
def test_a_calibrated_layer_keeps_its_transform_and_its_scale(tmp_path: Path) -> None:
    model = llama()
    recipe = bs.Recipe("int8_channel", input="int8:tensor:fp32")
    bs.calibrate(model, [torch.arange(48).reshape(2, 24)], recipe, transform="smoothquant")
    bs.save(model, tmp_path / "ours.safetensors")
    served = Served(open_stored_model(tmp_path / "ours.safetensors"))
    x = torch.randn(5, 64)
    for name in QKV:
        layer = served.layer(f"{name}.weight", torch.float32)
        assert layer.before is not None
        assert layer.input is not None
        assert layer.input.static
        assert torch.equal(layer(x), model.get_submodule(name)(x))


@pytest.mark.slow
def test_a_file_is_opened_once_for_all_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, _ = directory(llama(), "mxfp4", tmp_path)
    opens: list[str] = []

    def safe_open(path: str, framework: str) -> Any:
        opens.append(path)
        return safetensors.safe_open(path, framework)

    monkeypatch.setattr(stored_model, "safe_open", safe_open)
    for name in sorted(served.stored.metadata.tensors):
        served.weight(name, torch.float32)
    assert len(served.taken) > 8
    assert opens == [str(tmp_path / "ours" / "model.safetensors")]
    served.read_names()
    served.weight(f"{QKV[0]}.weight", torch.float32)  # a later one is read from a file of its own
    assert len(opens) == 2


def test_outputs_and_inputs_are_cut(tmp_path: Path) -> None:
    served, model = directory(llama(), bs.Recipe("mxfp4", input="mxfp8"), tmp_path)
    x = torch.randn(5, 64)
    whole = model.get_submodule(QKV[0])(x)
    weight = f"{QKV[0]}.weight"
    for start in (0, 32):
        rows = served.layer(weight, torch.float32, Part(0, start, start + 32))
        assert torch.equal(rows(x), whole[:, start : start + 32])
    halves = [served.layer(weight, torch.float32, Part(1, at, at + 32)) for at in (0, 32)]
    both = halves[0](x[:, :32]) + halves[1](x[:, 32:])
    torch.testing.assert_close(both, whole, rtol=1e-5, atol=1e-5)
    assert halves[0].qweight.nbytes * 2 == model.get_submodule(QKV[0]).qweight.nbytes


def test_inputs_that_are_looked_at_as_a_whole_are_not_cut(tmp_path: Path) -> None:
    served, _ = directory(llama(), bs.Recipe("int8_channel", input="int8_token"), tmp_path)
    served.layer(f"{QKV[0]}.weight", torch.float32, Part(0, 0, 32))
    with pytest.raises(
        ValueError, match=r"q_proj: the scale of its inputs .* of several processes"
    ):
        served.layer(f"{QKV[0]}.weight", torch.float32, Part(1, 0, 32))


def test_a_cut_through_bytes_names_the_layer(tmp_path: Path) -> None:
    served, _ = directory(llama(), "mxfp4", tmp_path)
    with pytest.raises(ValueError, match=r"q_proj\.weight: .* multiples of 2"):
        served.layer(f"{QKV[0]}.weight", torch.float32, Part(1, 0, 31))


@pytest.mark.slow
def test_a_transform_takes_all_inputs(tmp_path: Path) -> None:
    model = llama()
    recipe = bs.Recipe("int8_channel", input="int8:tensor:fp32")
    bs.calibrate(model, [torch.arange(24)[None]], recipe, transform="smoothquant")
    bs.save(model, tmp_path / "ours.safetensors")
    served = Served(open_stored_model(tmp_path / "ours.safetensors"))
    with pytest.raises(ValueError, match=r"q_proj: its inputs are transformed by .*=1"):
        served.layer(f"{QKV[0]}.weight", torch.float32, Part(1, 0, 32))


def test_layers_that_are_one_are_quantized_together(tmp_path: Path) -> None:
    served, _ = directory(llama(), bs.Recipe("mxfp4", skip=["*.k_proj", "*.mlp.*"]), tmp_path)
    with pytest.raises(ValueError, match=r"of which model.layers.0.self_attn.k_proj are float"):
        served.shards(QKV, "qkv_proj")
    mlp = [f"model.layers.0.mlp.{each}_proj" for each in ("gate", "up")]
    assert served.shards(mlp, "gate_up_proj") is None


def test_a_weight_that_no_layer_took_is_an_error(tmp_path: Path) -> None:
    served, _ = directory(llama(), bs.Recipe("mxfp4", skip=["lm_head", "*.mlp.*"]), tmp_path)
    for name in [*QKV, f"{ATTENTION}.o_proj"]:
        served.layer(f"{name}.weight", torch.float32)
    with pytest.raises(ValueError, match=r"1 quantized .*\(skip=\['model\.embed_tokens'\]"):
        served.read_names()
    served.rows("model.embed_tokens.weight", torch.float32, torch.device("cpu"), (0, 96))
    names = served.read_names()
    assert f"{QKV[0]}.weight.codes" in names
    assert "model.norm.weight" not in names


def test_names_that_a_server_changes(tmp_path: Path) -> None:
    served, _ = directory(llama(), bs.Recipe("mxfp4", skip=["lm_head"]), tmp_path)
    served.rename(lambda name: name.replace("model.layers", "language.blocks"))
    assert served.tensor("language.blocks.0.self_attn.q_proj.weight") == f"{QKV[0]}.weight"
    for tensor in served.stored.metadata.tensors:
        served.weight(tensor, torch.float32)
    assert "language.blocks.0.self_attn.q_proj.weight.codes" in served.read_names()


def test_tables_and_heads(tmp_path: Path) -> None:
    served, model = directory(llama(tie_word_embeddings=True), "mxfp4", tmp_path)
    table = "model.embed_tokens.weight"
    assert served.table("model.embed_tokens", (96, 64)) == table
    assert served.table("", (96, 64)) == table  # vLLM's Llama does not name it
    assert served.table("lm_head", (96, 64)) == table
    assert served.table("", (97, 64)) is None
    cpu = torch.device("cpu")
    held = served.rows(table, torch.float32, cpu, (0, 96))
    assert served.rows(table, torch.float32, cpu, (0, 96)) is held
    some = served.rows(table, torch.float32, cpu, (32, 64))
    assert torch.equal(some.dequantize(), model.model.embed_tokens.qweight.dequantize()[32:64])


def test_a_head_in_float_and_tables_that_cannot_be_told_apart(tmp_path: Path) -> None:
    served, _ = directory(llama(), bs.Recipe("mxfp4", skip=["lm_head"]), tmp_path / "a")
    assert served.table("lm_head", (96, 64)) is None
    assert served.table("model.embed_tokens", (96, 64)) == "model.embed_tokens.weight"
    served.stored.metadata.tensors["other_embed.weight"] = served.stored.metadata.tensors[
        "model.embed_tokens.weight"
    ]
    with pytest.raises(ValueError, match=r"which of .*embed_tokens\.weight, other_embed\.weight"):
        served.table("", (96, 64))


def relu(y: torch.Tensor) -> torch.Tensor:
    gate, up = y.chunk(2, -1)
    return gate.relu() * up


def silu(y: torch.Tensor) -> torch.Tensor:
    gate, up = y.chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


def values_of(matrices: ExpertMatrices) -> torch.Tensor:
    assert matrices.stack is not None
    return matrices.stack.dequantize()


def mixture() -> Any:
    torch.manual_seed(0)
    return Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            **COMMON, moe_intermediate_size=32, head_dim=16, num_experts=4, num_experts_per_tok=2
        )
    ).eval()


@pytest.mark.parametrize("one_by_one", [True, False])
@pytest.mark.parametrize("fmt", ["nvfp4", "int8_channel"])
def test_experts_of_files_and_of_saved_models(fmt: str, one_by_one: bool, tmp_path: Path) -> None:
    """The `quantize` command keeps experts apart, `save_pretrained` of a model has stacks."""
    served, model = (directory if one_by_one else saved)(mixture(), fmt, tmp_path)
    place = "model.layers.0.mlp.experts"
    stored = served.experts(place, 4, ["gate_proj", "up_proj", "down_proj"])
    assert stored is not None
    experts = stored.read(range(4), torch.float32)
    x, ids = torch.randn(7, 64), torch.rand(7, 4).argsort(-1)[:, :2]
    weights = torch.rand(7, 2)

    layer = model.model.layers[0].mlp.experts
    expected = layer(x, ids, weights)
    torch.testing.assert_close(experts(x, weights, ids, silu), expected, rtol=1e-5, atol=1e-6)
    some = stored.read([3, 1], torch.float32)  # two of them in this process
    where = torch.tensor([-1, 1, -1, 0])
    part = some(x, weights, where[ids], silu)
    mine = torch.where((ids == 3) | (ids == 1), weights, 0.0)
    torch.testing.assert_close(part, layer(x, ids, mine), rtol=1e-5, atol=1e-6)
    assert served.notes() == []


@pytest.mark.parametrize("fmt", ["nvfp4", "int4:group32:fp32", "fp8", "nf4", "mxfp8", "int8_token"])
@pytest.mark.parametrize("inputs", [None, "int8_token", "mxfp8"])
def test_experts_of_files_are_one_stack(fmt: str, inputs: str | None, tmp_path: Path) -> None:
    """One product of all of them has the bits of one after another."""
    served, _ = directory(mixture(), bs.Recipe(fmt, input=inputs), tmp_path)
    stored = served.experts("model.layers.0.mlp.experts", 4, ["gate_proj", "up_proj", "down_proj"])
    assert stored is not None
    experts = stored.read(range(4), torch.float32)
    x, ids = torch.randn(7, 64), torch.rand(7, 4).argsort(-1)[:, :2]
    weights = torch.rand(7, 2)
    matrices = []
    for names, own in ((stored.up, experts.up), (stored.down, experts.down)):
        assert own.stack is not None
        assert not own.layers
        layers = [served.joined(each, torch.float32) for each in names]
        for layer, values in zip(layers, own.stack.dequantize(), strict=True):
            rows = [one.dequantize_weight() for one in layer.each()]
            assert torch.equal(torch.cat(rows), values)
        matrices.append(ExpertMatrices(None, layers))
    apart = Experts(*matrices, 4)
    assert torch.equal(experts(x, weights, ids, relu), apart(x, weights, ids, relu))


@pytest.mark.parametrize(
    ("recipe", "why"),
    [
        (bs.Recipe("int8:block24x64:fp32"), "32 rows of a part of the matrix cannot be divided"),
        (bs.Recipe("mxfp4", rules={"*experts.2.up_proj": "mxfp8"}), "several formats or shapes"),
        (bs.Recipe("mxfp4", rules={"*experts.2.*": {"input": "mxfp8"}}), "several input formats"),
    ],
)
def test_experts_that_are_no_stack(recipe: bs.Recipe, why: str, tmp_path: Path) -> None:
    """They are computed one after another, and the server says why."""
    mixture().save_pretrained(tmp_path / "float")
    bs.quantize_directory(tmp_path / "float", tmp_path / "ours", recipe)
    served = Served(open_stored_model(tmp_path / "ours"))
    place = "model.layers.0.mlp.experts"
    stored = served.experts(place, 4, ["gate_proj", "up_proj", "down_proj"])
    assert stored is not None
    experts = stored.read(range(4), torch.float32)
    assert experts.up.stack is None
    assert why in experts.up.apart
    (note, *_) = served.notes()
    assert why in note
    assert f"the first {place}.0.gate_proj.weight, are computed one after another" in note
    x, ids = torch.randn(7, 64), torch.rand(7, 4).argsort(-1)[:, :2]
    weights = torch.rand(7, 2)
    ups, downs = (
        [served.joined(each, torch.float32) for each in names] for names in (stored.up, stored.down)
    )
    expected = torch.zeros(7, 64)
    for t, chosen in enumerate(ids.tolist()):
        for slot, e in enumerate(chosen):
            y = downs[e](silu(ups[e](x[t : t + 1])))
            expected[t] += weights[t, slot] * y[0]
    torch.testing.assert_close(experts(x, weights, ids, silu), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fmt", ["mxfp4", "nvfp4"])
def test_experts_of_gpt_oss(fmt: str, tmp_path: Path) -> None:
    """Stacks [E, k, 2 n] whose gates and ups take turns, and biases in float beside them."""
    torch.manual_seed(0)
    model = GptOssForCausalLM(
        GptOssConfig(**COMMON, head_dim=16, num_local_experts=4, num_experts_per_tok=2)
    ).eval()
    layer = model.model.layers[0].mlp.experts
    with torch.no_grad():
        layer.gate_up_proj_bias.normal_()
        layer.down_proj_bias.normal_()
    served, model = directory(model, bs.Recipe(fmt, skip=["model.embed_tokens"]), tmp_path)
    layer = model.model.layers[0].mlp.experts
    place = "model.layers.0.mlp.experts.routed_experts"
    stored = served.experts(place, 4, ["w1", "w3", "w2"])
    assert stored is not None
    assert stored.outputs() == 2 * 96
    x, ids = torch.randn(7, 64), torch.rand(7, 4).argsort(-1)[:, :2]
    weights, biases = torch.rand(7, 2), Biases(layer.gate_up_proj_bias, layer.down_proj_bias)
    experts = stored.read(range(4), torch.float32)
    found = experts(x, weights, ids, clamped_swiglu, biases=biases)
    torch.testing.assert_close(found, layer(x, ids, weights), rtol=1e-5, atol=1e-5)
    assert not {name for name in served.taken if name.endswith("_bias")}  # the server loads them


def test_experts_of_which_some_are_float(tmp_path: Path) -> None:
    projections = ["gate_proj", "up_proj", "down_proj"]
    place = "model.layers.0.mlp.experts"
    skip = ["*.experts.2.*"]
    served, _ = directory(mixture(), bs.Recipe("mxfp4", skip=skip), tmp_path)
    with pytest.raises(ValueError, match="some experts are quantized and others are not"):
        served.experts(place, 4, projections)
    assert served.experts("model.layers.1.mlp.experts", 4, projections) is None


def test_a_float_directory_is_quantized_once(tmp_path: Path) -> None:
    """With the bytes of quantize_directory; another recipe has a folder of its own; the server
    leaves out the float weights that were taken, as it calls them, and no others."""
    directory(llama(), "mxfp4", tmp_path)
    cache = tmp_path / "cache"
    stored = quantized_copy(str(tmp_path / "float"), {"recipe": "mxfp4"}, cache)
    written = [folder / "model.safetensors" for folder in (stored.path, tmp_path / "ours")]
    assert written[0].read_bytes() == written[1].read_bytes()
    before = written[0].stat().st_mtime_ns
    again = quantized_copy(str(tmp_path / "float"), {"recipe": "mxfp4"}, cache)
    assert (again.path, written[0].stat().st_mtime_ns) == (stored.path, before)
    other = quantized_copy(str(tmp_path / "float"), {"recipe": "int4", "seed": 1}, cache)
    assert other.path.parent == stored.path.parent == cache
    assert other.path != stored.path
    with pytest.raises(ValueError, match="quantization_config has no recipe"):
        quantized_copy(str(tmp_path / "float"), {"quant_method": "blockscale"}, cache)
    served = Served(stored)
    served.rename(lambda name: name.replace("model.layers", "theirs"))
    for name in list(stored.metadata.tensors):
        served.weight(name, torch.float32)
    left_out = served.read_names()
    assert {"theirs.0.mlp.up_proj.weight", "lm_head.weight"} <= left_out
    assert not {name for name in left_out if name.endswith("norm.weight")}


@pytest.mark.parametrize("one_by_one", [True, False])
@pytest.mark.parametrize("fmt", ["nvfp4", "int4:group16:fp32", "int8_channel"])
def test_each_process_has_a_part_of_every_expert(
    fmt: str, one_by_one: bool, tmp_path: Path
) -> None:
    """Two parts of a mixture's experts add up to the whole, from half of the bytes each."""
    recipe = bs.Recipe(fmt, rules={"*experts*": {"weight": fmt, "input": "e4m3:group16:e8m0"}})
    served = (directory if one_by_one else saved)(mixture(), recipe, tmp_path)[0]
    stored = served.experts("model.layers.0.mlp.experts", 4, ["gate_proj", "up_proj", "down_proj"])
    assert stored is not None
    every = range(4)
    whole = stored.read(every, torch.float32)
    halves = [stored.read(every, torch.float32, rank, 2) for rank in range(2)]
    x, weights = torch.randn(7, 64), torch.rand(7, 2)
    ids = torch.tensor([[0, 1], [2, 3], [1, 2], [0, 3], [3, 1], [2, 0], [1, 3]])
    parts = [half(x, weights, ids, relu) for half in halves]
    assert all(each.abs().max() > 0 for each in parts)
    expected = whole(x, weights, ids, relu)
    torch.testing.assert_close(parts[0] + parts[1], expected, rtol=1e-5, atol=1e-5)
    up, down = (values_of(each)[2] for each in (whole.up, whole.down))
    for rank, half in enumerate(halves):
        rows = slice(16 * rank, 16 * (rank + 1))
        gate_and_up = torch.cat([each[rows] for each in up.chunk(2)])
        assert torch.equal(values_of(half.up)[2], gate_and_up)
        assert torch.equal(values_of(half.down)[2], down[:, rows])


def test_experts_that_cannot_be_cut(tmp_path: Path) -> None:
    served, _ = directory(mixture(), "mxfp4", tmp_path / "apart")
    stored = served.experts("model.layers.0.mlp.experts", 4, ["gate_proj", "up_proj", "down_proj"])
    assert stored is not None
    with pytest.raises(ValueError, match=r"32 cannot be cut into 3 equal parts: set tensor_par"):
        stored.read(range(4), torch.float32, 0, 3)
    served, _ = saved(mixture(), "mxfp4", tmp_path)
    stacked = served.experts("model.layers.0.mlp.experts", 4, ["gate_proj", "up_proj", "down_proj"])
    assert stacked is not None
    with pytest.raises(ValueError, match=r"gate_up_proj: 32 cannot be cut into 3 equal parts"):
        stacked.read(range(4), torch.float32, 0, 3)
    with pytest.raises(ValueError, match=r"gate_up_proj has 4 experts, expected some of them"):
        stacked.read([0, 7], torch.float32)
    recipe = bs.Recipe("int8:group16:fp32", input="int8_token")
    served, _ = saved(mixture(), recipe, tmp_path / "inputs")
    stacked = served.experts("model.layers.0.mlp.experts", 4, ["gate_proj", "up_proj", "down_proj"])
    assert stacked is not None
    with pytest.raises(ValueError, match=r"down_proj: the scale of its inputs in int8:token"):
        stacked.read(range(4), torch.float32, 0, 2)


@pytest.mark.parametrize(
    ("fmt", "why"),
    [("int8:flat48:fp32", "has numbers that several matrices of a stack share"),
     ("int8:tile24x32:fp32", "gates and ups share numbers of int8:tile24x32:fp32")],
)  # fmt: skip
def test_stacks_whose_gates_and_ups_are_not_apart(fmt: str, why: str) -> None:
    stack = QWeight.quantize(torch.randn(3, 64, 32), parse(fmt))
    stack.name = "experts.gate_up_proj"
    with pytest.raises(ValueError, match=rf"experts\.gate_up_proj: .*{why}"):
        layers_of(stack, 0, 2, Slice(0, 0, 2))


def test_groups_of_inputs_that_a_process_would_cut(tmp_path: Path) -> None:
    """A group of 32 of which each process has half would get other scales."""
    served, _ = directory(llama(), bs.Recipe("mxfp4", input="mxfp8"), tmp_path)
    name = "model.layers.0.mlp.down_proj.weight"  # 96 inputs
    assert served.layer(name, torch.float32, Part(1, 32, 96)).in_features == 64
    with pytest.raises(ValueError, match=r"down_proj: the scale of its inputs in e4m3:group32:e8m"):
        served.layer(name, torch.float32, Part(1, 0, 48))
    model = llama()
    recipe = bs.Recipe("mxfp4", input="int8:channel-1:fp32")
    bs.calibrate(model, [torch.arange(48).reshape(2, 24)], recipe)
    bs.save(model, tmp_path / "ours.safetensors")
    served = Served(open_stored_model(tmp_path / "ours.safetensors"))
    with pytest.raises(ValueError, match=r"down_proj: the static scale of its input .* is not one"):
        served.layer(name, torch.float32, Part(1, 0, 32))
