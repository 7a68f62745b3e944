# SPDX-License-Identifier: BSD-3-Clause
"""Caches of files in codes: the reference's bits, and the tokens that torch chooses with them."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import blockscale as bs
from blockscale.export.to_onnx.decoder import Decoder
from blockscale.export.to_onnx.decoder_cache import cache_format, fixed_sizes, put_codes_in
from blockscale.integrations.transformers import QuantizedCache
from tests.export.to_onnx.decoders import model_of, session

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

FEATURES = 64
DECODER = Decoder(torch.nn.Linear(1, 1), (((2, FEATURES), (2, FEATURES)),), positions=False)
FORMATS = [
    "int8:token:fp32", "int4:group32:fp32", "int4:token:fp32", "int8:group16:fp16",
    "int4:group32:fp32:full", "int8:group32:fp32:recip",
]  # fmt: skip
KINDS = {"tensor(float)": np.float32, "tensor(float16)": np.float16,
         "tensor(int8)": np.int8, "tensor(uint8)": np.uint8}  # fmt: skip


def graph_of(op: str = "Concat") -> Any:
    """Two caches as a translated model has them, and what attention sees of the first."""
    sizes = ["batch_size", 2, "past_sequence_length", FEATURES]
    inputs, outputs, nodes = [], [], []
    for kind in ("key", "value"):
        past, present = f"past_key_values.0.{kind}", f"present.0.{kind}"
        inputs.append(helper.make_tensor_value_info(past, TensorProto.FLOAT, sizes))
        inputs.append(
            helper.make_tensor_value_info(f"new.{kind}", TensorProto.FLOAT, [None, 2, None, 64])
        )
        options = {"axis": 2} if op == "Concat" else {}
        nodes.append(helper.make_node(op, [past, f"new.{kind}"], [present], **options))
        outputs.append(helper.make_tensor_value_info(present, TensorProto.FLOAT, [None] * 4))
    nodes.append(helper.make_node("Identity", ["present.0.key"], ["seen"]))
    nodes.insert(0, helper.make_node("Shape", ["past_key_values.0.key"], ["length"]))
    outputs.append(helper.make_tensor_value_info("length", TensorProto.INT64, [4]))
    outputs.append(helper.make_tensor_value_info("seen", TensorProto.FLOAT, [None] * 4))
    return helper.make_graph(nodes, "g", inputs, outputs)


def tensors_of(q: bs.QTensor) -> dict[str, Any]:
    return {"codes": q.packed.numpy(), "scale": q.qparams.scale.numpy()}


@pytest.mark.parametrize("fmt", FORMATS)
def test_codes_scales_and_what_is_seen(fmt: str, tmp_path: Path) -> None:
    graph = graph_of()
    put_codes_in(graph, DECODER, cache_format(fmt, DECODER))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(tmp_path / "m.onnx"))
    file = session(tmp_path / "m.onnx")
    torch.manual_seed(0)
    for past, new in ((0, 5), (5, 1), (33, 3)):
        keys = torch.randn(3, 2, past + new, FEATURES) * torch.logspace(-3, 3, FEATURES)
        keys[0, 0, -1] = 0.0
        first, last = keys[:, :, :past], keys[:, :, past:]
        held = {part: np.zeros((3, 2, 0, each.shape[-1]), each.dtype)
                for part, each in tensors_of(bs.quantize(last, fmt)).items()}  # fmt: skip
        seen = last
        if past:
            q = bs.quantize(first.contiguous(), fmt)
            held, seen = tensors_of(q), torch.cat([q.dequantize(), last], 2)
        feed = {f"past_key_values.0.{kind}.{part}": each for kind in ("key", "value")
                for part, each in held.items()}  # fmt: skip
        feed |= {f"new.{kind}": last.numpy() for kind in ("key", "value")}
        named = dict(
            zip([each.name for each in file.get_outputs()], file.run(None, feed), strict=True)
        )
        more = tensors_of(bs.quantize(last.contiguous(), fmt))
        for kind in ("key", "value"):
            for part, each in more.items():
                expected = np.concatenate([held[part], each], 2)
                assert np.array_equal(named[f"present.0.{kind}.{part}"], expected), (part, past)
        assert np.array_equal(named["seen"], seen.numpy())
        assert named["length"].tolist() == [3, 2, past, FEATURES]


def test_sizes_and_types_are_told() -> None:
    graph = graph_of()
    put_codes_in(graph, DECODER, cache_format("int4:group32:fp32", DECODER))
    told = {
        each.name: (each.type.tensor_type.elem_type,
                    [d.dim_param or d.dim_value for d in each.type.tensor_type.shape.dim])
        for each in graph.input
    }  # fmt: skip
    sizes = ["batch_size", 2, "past_sequence_length"]
    assert told["past_key_values.0.value.codes"] == (TensorProto.UINT8, [*sizes, 32])
    assert told["past_key_values.0.value.scale"] == (TensorProto.FLOAT, [*sizes, 2])
    assert "past_key_values.0.key" not in told and "new.key" in told


@pytest.mark.parametrize(
    "fmt",
    ["mxfp4", "int8", "int8_channel", "uint8:token:fp32:asym", "int4:group32:bf16",
     "int4:group32:e4m3", "int6:token:fp32", "int8:group32:e8m0/floor", "int8:flat32:fp32"],
)  # fmt: skip
def test_other_formats_are_refused(fmt: str) -> None:
    with pytest.raises(ValueError, match=r"cache='.*': a file holds keys and values of int8 or"):
        cache_format(fmt, DECODER)


def test_groups_have_to_divide_a_head() -> None:
    with pytest.raises(ValueError, match="64 features, which are no whole groups of 48"):
        cache_format("int4:group48:fp32", DECODER)
    odd = Decoder(DECODER.model, (((2, 33), (2, 33)),), positions=False)
    with pytest.raises(ValueError, match="33 features, which are no whole bytes"):
        cache_format("int4:token:fp32", odd)


def test_a_cache_that_is_made_otherwise_is_refused() -> None:
    with pytest.raises(ValueError, match=r"present\.0\.key is made by Add, and not of the past"):
        put_codes_in(graph_of("Add"), DECODER, cache_format("int8:token:fp32", DECODER))


def test_sizes_are_three_numbers(tmp_path: Path) -> None:
    sizes = {"batch_size": 1, "sequence_length": 2, "past_sequence_length": 30}
    assert fixed_sizes(sizes) == (1, 2, 30)
    with pytest.raises(ValueError, match="sizes must be batch_size, sequence_length, past_seq"):
        fixed_sizes({"batch_size": 1})
    with pytest.raises(ValueError, match="whole numbers of at least 1"):
        fixed_sizes(sizes | {"sequence_length": 0})
    with pytest.raises(ValueError, match="pass cache=True, too"):
        bs.export.onnx(torch.nn.Linear(2, 2), tmp_path / "m.onnx", sizes=sizes)


def generated(file: Any, ids: Any, mask: Any, count: int) -> Any:
    """Greedy tokens [rows, count], one by one; the past is whatever the file takes."""
    past = {
        each.name: np.zeros((len(ids), each.shape[1], 0, each.shape[3]), KINDS[each.type])
        for each in file.get_inputs() if each.name.startswith("past_key_values")
    }  # fmt: skip
    tokens, results = ids, []
    for _ in range(count):
        positions = np.maximum(mask.cumsum(1) - 1, 0)[:, -tokens.shape[1] :]
        feed = {"input_ids": tokens, "attention_mask": mask, "position_ids": positions, **past}
        logits, *present = file.run(None, feed)
        past = dict(zip(past, present, strict=True))
        tokens = logits[:, -1].argmax(-1)[:, None]
        mask = np.concatenate([mask, np.ones_like(tokens)], 1)
        results.append(tokens)
    return np.concatenate(results, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "weights", "fmt"),
    [("llama", "int8_channel", "int8:token:fp32"), ("qwen3", "mxfp4", "int4:group16:fp32"),
     ("mistral", "int4:group32:fp32", "int8:group16:fp16")],
)  # fmt: skip
def test_tokens_are_those_of_a_quantized_cache(
    kind: str, weights: str, fmt: str, tmp_path: Path
) -> None:
    """64 steps of three rows, one of them filled on its left."""
    model = model_of(kind)
    bs.quantize_(model, weights)
    bs.export.onnx(model, tmp_path / "model.onnx", cache=fmt)
    assert [each.name for each in tmp_path.iterdir()] == ["model.onnx"]  # no config: genai cannot
    ids = torch.randint(1, 96, (3, 7), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    options = {"max_new_tokens": 64, "do_sample": False, "eos_token_id": None}
    cache = QuantizedCache(model.config, fmt, window=0, chunk=1)
    expected = model.generate(ids, attention_mask=mask, past_key_values=cache, **options)[:, 7:]
    floats = model.generate(ids, attention_mask=mask, **options)[:, 7:]
    if "int4" in fmt:
        assert not torch.equal(expected, floats)  # the cache is something
    found = generated(session(tmp_path / "model.onnx"), ids.numpy(), mask.numpy(), 64)
    assert np.array_equal(found, expected.numpy())


@pytest.mark.slow
@pytest.mark.parametrize("cache", [True, "int8:token:fp32"])
def test_fixed_sizes(cache: Any, tmp_path: Path) -> None:
    """One token a call; the past is of 80, of which those that are not there yet are masked."""
    model, past = model_of("llama"), 80
    bs.quantize_(model, "int8_channel")
    sizes = {"batch_size": 1, "sequence_length": 1, "past_sequence_length": past}
    bs.export.onnx(model, tmp_path / "model.onnx", cache=cache, sizes=sizes)
    file = session(tmp_path / "model.onnx")
    every = (*file.get_inputs(), *file.get_outputs())
    assert all(isinstance(size, int) for each in every for size in each.shape)
    ids = torch.randint(1, 96, (1, 7), generator=torch.Generator().manual_seed(1))
    own = {} if cache is True else {
        "past_key_values": QuantizedCache(model.config, cache, window=0, chunk=1)
    }  # fmt: skip
    options = {"max_new_tokens": 64, "do_sample": False, "eos_token_id": None}
    tokens = ids[:, :1]
    if own:  # token by token from the first, as the file is called
        with torch.no_grad():
            for i in range(6):
                model(ids[:, i : i + 1], **own)
    expected = model.generate(ids, **own, **options)[0].tolist()
    held = {each.name: np.zeros(each.shape, KINDS[each.type]) for each in file.get_inputs()
            if each.name.startswith("past_key_values")}  # fmt: skip
    texts, mask = ids[0].tolist(), np.zeros((1, past + 1), np.int64)
    for i in range(7 + 63):
        mask[:, past - i :] = 1
        tokens = np.array([[texts[i]]])
        feed = {"input_ids": tokens, "attention_mask": mask, "position_ids": np.array([[i]])}
        logits, *present = file.run(None, feed | held)
        held = {name: each[:, :, 1:] for name, each in zip(held, present, strict=True)}
        if i >= 6:
            texts.append(int(logits[0, -1].argmax()))
    assert texts == expected
