# SPDX-License-Identifier: BSD-3-Clause
"""A checkpoint as a stored model: the names, kinds and parts that `bs.load` asks for."""

import json
import pathlib

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import blockscale as bs
from blockscale.export.checkpoints.loading import as_stored
from blockscale.layers.layer import QLayer
from tests.export.checkpoints import packing
from tests.export.checkpoints.layouts.recorded import cases, directory
from tests.support.checkpoints_loading import GPTQ, RECORDED, llama, stored_llama


def opened(path, producer, case):
    stored, values, config = cases(producer)[case]
    return bs.checkpoint(directory(path / "d", stored, config)), values


def test_parts(tmp_path):
    checkpoint, values = opened(tmp_path, "gptq", "4act")
    found = as_stored(nn.ModuleDict({"a": nn.Linear(128, 32, bias=False)}), checkpoint)
    assert found.plain() == set() and found.metadata.before("a") == "order"
    parts = found.parts_of("a.weight") | found.before_parts("a")
    assert set(parts) == {"codes", "scale", "zero_point", "order"}
    tensors = found.read(list(parts.values()))
    assert {n: (t.dtype, tuple(t.shape)) for n, t in tensors.items()} == dict(found.kinds)
    order = tensors["a.before.order"].long()
    codes = checkpoint["a.weight"].dequantize()
    back = torch.empty_like(codes).index_copy_(1, order, codes)
    assert torch.equal(back.half(), values)


def test_a_shape_that_is_not_in_the_file(tmp_path):
    stored, values, config = cases("quanto")["qint4 bytes fp32"]
    del (stored := dict(stored))["a.bias"]
    checkpoint = bs.checkpoint(directory(tmp_path / "d", stored, config))
    assert checkpoint.stored["a.weight"].shape == (32, 128)
    model = nn.ModuleDict({"a": nn.Linear(256, 16, bias=False)})
    info = as_stored(model, checkpoint).metadata.tensors["a.weight"]
    assert (info.format, info.shape) == ("uint4:group128:fp32:offset", (16, 256))
    bs.load(model, checkpoint.path)
    assert torch.equal(model["a"].dequantize_weight(), values)
    other = nn.ModuleDict({"a": nn.Linear(255, 16, bias=False)})
    with pytest.raises(bs.FileError, match="this model's has"):
        bs.load(other, checkpoint.path)


def test_zeros_in_the_place_of_a_bias(tmp_path):
    stored, _, config = cases("awq")["gemm"]
    model = nn.ModuleDict({"a": nn.Linear(128, 32, bias=False)})
    path = directory(tmp_path / "d", stored | {"a.bias": torch.zeros(32)}, config)
    with bs.checkpoint(path) as checkpoint:
        assert as_stored(model, checkpoint).plain() == set()
    biased = nn.ModuleDict({"a": nn.Linear(128, 32)})
    with bs.checkpoint(path) as checkpoint:
        assert as_stored(biased, checkpoint).plain() == {"a.bias"}


# `bs.load` of what other producers wrote: their codes in our layers, their values and tokens.


@pytest.mark.slow
@pytest.mark.parametrize("producer", ["gptq", "bitsandbytes"])
def test_a_llama_generates(producer, tmp_path):
    theirs, ours = llama(), llama()
    stored = stored_llama(theirs, producer)
    config = GPTQ if producer == "gptq" else {"quant_method": "bitsandbytes"}
    assert bs.load(ours, directory(tmp_path / "d", stored, config)) is ours
    for name, layer in theirs.model.layers.named_modules():
        if isinstance(layer, nn.Linear):
            found = ours.model.layers.get_submodule(name)
            assert isinstance(found, QLayer)
            assert torch.equal(found.dequantize_weight(), layer.weight)
            ordered = producer == "gptq" and "mlp" in name
            assert (found.before is not None) == ordered
    ids = torch.randint(0, 96, (2, 7))
    with torch.no_grad():
        torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, rtol=1e-4, atol=1e-5)
        how = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
        assert torch.equal(ours.generate(ids, **how), theirs.generate(ids, **how))
    bs.save(ours, tmp_path / "again.safetensors")  # and as a file of ours
    again = bs.load(llama(), tmp_path / "again.safetensors")
    for name, layer in theirs.model.layers.named_modules():
        if isinstance(layer, nn.Linear):
            found = again.model.layers.get_submodule(name)
            assert torch.equal(found.dequantize_weight(), layer.weight)


@pytest.mark.slow
def test_a_gguf_file_as_transformers_reads_it():
    expected = load_file(RECORDED / "gguf_llama.safetensors")
    model = bs.load(llama(), RECORDED / "llama.gguf")
    for name, rows in expected.items():
        if name.startswith("w."):
            layer = model.get_submodule(name[2:])
            held = isinstance(layer, QLayer)
            weight = layer.dequantize_weight() if held else layer.weight
            assert torch.equal(weight[:8], rows), name
            assert held == (rows.ndim == 2)
    ids = expected["ids"]
    with torch.no_grad():
        logits = model(ids).logits
        torch.testing.assert_close(logits, expected["logits"], rtol=1e-4, atol=1e-5)
        sequel = model.generate(ids, max_new_tokens=8, do_sample=False, pad_token_id=0)
    assert torch.equal(sequel, expected["sequel"])


@pytest.mark.parametrize(
    ("producer", "case"),
    [
        ("awq", "gemm"), ("gptq", "3"), ("hqq", "4 axis 0 fp16"), ("hqq", "3 axis 1 fp16"),
        ("quanto", "qint4 bytes fp32"), ("quanto", "qint4 without bias"), ("mlx", "6 bytes bf16"),
        ("mlx", "mxfp8 mixed"), ("mlx", "nvfp4 bytes"), ("bitsandbytes", "int8 normal"),
        ("bitsandbytes", "nf4 odd"),
    ],
)  # fmt: skip
def test_a_layer_computes_with_the_file_s_codes(producer, case, tmp_path):
    stored, values, config = cases(producer)[case]
    path = directory(tmp_path / "d", stored, config)
    with bs.checkpoint(path) as checkpoint:
        q = checkpoint["a.weight"]
    model = nn.ModuleDict({"a": nn.Linear(*values.shape[::-1], bias="a.bias" in stored)})
    bs.load(model, path)
    assert isinstance(model["a"], QLayer)
    assert torch.equal(model["a"].dequantize_weight(), q.dequantize().reshape(values.shape))
    assert torch.equal(model["a"].qweight.codes.flatten(), q.packed.flatten())
    x = torch.randn(3, values.shape[1])
    weight = model["a"].dequantize_weight().double()
    y, bias = model["a"](x).double(), stored.get("a.bias", torch.zeros(1)).double()
    bound = 2**-18 * (x.double().abs() @ weight.abs().T + bias.abs())
    assert bool(((y - x.double() @ weight.T - bias).abs() <= bound).all())


def test_inputs_first(tmp_path):
    """GPT-2's Conv1D has [inputs, outputs]; GPTQ's module of it is read as for a linear layer."""
    from transformers.pytorch_utils import Conv1D

    parts, values = packing.gptq((32, 64), 4, 32)
    stored = {f"c.{n}": t for n, t in parts.items()} | {"c.bias": torch.randn(32)}
    model = nn.ModuleDict({"c": Conv1D(32, 64)})
    bs.load(model, directory(tmp_path / "d", stored, GPTQ))
    assert isinstance(model["c"], QLayer)
    assert torch.equal(model["c"].dequantize_weight(), values.T)


def test_tied_weights(tmp_path):
    """An embedding that the output shares is stored once."""
    stored, values, config = cases("mlx")["4 normal fp32"]
    model = nn.ModuleDict({"a": nn.Embedding(8, 128), "head": nn.Linear(128, 8, bias=False)})
    model["head"].weight = model["a"].weight
    bs.load(model, directory(tmp_path / "d", stored, config))
    assert torch.equal(model["head"].dequantize_weight(), values)
    assert model["head"].qweight is model["a"].qweight


def test_a_parameter_that_nothing_fits(tmp_path):
    stored, _, config = cases("awq")["gemm"]
    path = directory(tmp_path / "d", stored, config)
    model = nn.ModuleDict({"a": nn.Linear(128, 33, bias=False)})
    before = model["a"].weight.clone()
    told = r"a.weight has shape \(32, 128\), this model's has \(33, 128\)"
    with pytest.raises(bs.FileError, match=told):
        bs.load(model, path)
    assert torch.equal(model["a"].weight, before)
    biased = nn.ModuleDict({"a": nn.Linear(128, 32)})
    with pytest.raises(bs.FileError, match=r"it lacks a\.bias"):
        bs.load(biased, path)
    save_file(stored | {"a.bias": torch.ones(32)}, path / "model.safetensors")
    with pytest.raises(bs.FileError, match=r"it has a\.bias"):
        bs.load(nn.ModuleDict({"a": nn.Linear(128, 32, bias=False)}), path)


def test_what_cannot_be_read_changes_nothing(tmp_path):
    stored = {
        "a.trellis": torch.zeros(4, 4, 16, dtype=torch.int16),
        "a.suh": torch.ones(64).half(), "a.svh": torch.ones(64).half(),
    }  # fmt: skip
    model = nn.ModuleDict({"a": nn.Linear(64, 64, bias=False)})
    with pytest.raises(bs.FileError, match=r"a\.weight: EXL3 stores codes along a trellis"):
        bs.load(model, directory(tmp_path / "d", stored, {}))
    assert type(model["a"]) is nn.Linear


def test_a_version_that_lies_is_told(tmp_path):
    parts, values = packing.gptq((32, 64), 4, 32, z=8)
    config = {"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "gptq"}
    path = directory(tmp_path / "d", {f"a.{n}": t for n, t in parts.items()}, config)
    model = nn.ModuleDict({"a": nn.Linear(64, 32, bias=False)})
    with pytest.warns(
        UserWarning, match=r"its configuration says gptq \(version 1\), but its zero points"
    ):
        bs.load(model, path)
    assert torch.equal(model["a"].dequantize_weight(), values)


def test_files_of_ours_and_floats(tmp_path):
    model = nn.Sequential(nn.Linear(64, 8))
    save_file(model.state_dict(), tmp_path / "floats.safetensors")
    again = bs.load(nn.Sequential(nn.Linear(64, 8)), tmp_path / "floats.safetensors")
    assert torch.equal(again[0].weight, model[0].weight)
    bs.quantize_(model, "int4")
    bs.save(model, tmp_path / "ours.safetensors")
    again = bs.load(nn.Sequential(nn.Linear(64, 8)), tmp_path / "ours.safetensors")
    assert torch.equal(again[0].dequantize_weight(), model[0].dequantize_weight())
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": 3}))
    bs.load(nn.Sequential(nn.Linear(64, 8)), tmp_path / "ours.safetensors")  # which says it itself


def onnx_file(path: pathlib.Path, layer: str) -> pathlib.Path:
    """Codes of int4 [8, 32], scales by blocks of 16, and a bias, under a layer's names."""
    from onnx import helper

    from tests.export.checkpoints import onnx_files as files

    codes, scale, bias = (f"{layer}.{part}" for part in ("weight.codes", "weight.scale", "bias"))
    tensors = [
        files.tensor(codes, "int4", (8, 32), files.random_bytes(8 * 32 // 2)),
        files.floats(scale, files.scales((8, 2))),
        files.floats(bias, files.scales((8,))),
    ]
    node = helper.make_node("DequantizeLinear", [codes, scale], ["y"], axis=1, block_size=16)
    return files.save(path, [node], tensors)


def test_an_onnx_file(tmp_path):
    """Of any writer, where its tensors have the model's names."""
    from tests.export.checkpoints.onnx_files import run, same

    path, model = onnx_file(tmp_path / "m.onnx", "0"), nn.Sequential(nn.Linear(32, 8))
    bs.load(model, path)
    with bs.checkpoint(path) as found:
        assert torch.equal(model[0].qweight.codes, found["0.weight"].packed)
        assert torch.equal(model[0].bias, found["0.bias"])
    assert same(model[0].dequantize_weight(), run(path))  # onnxruntime's values


def test_an_onnx_file_of_another_model(tmp_path):
    """Taken for safetensors, its header "would take 8031177557570357768 bytes"."""
    path, model = onnx_file(tmp_path / "m.onnx", "other"), nn.Sequential(nn.Linear(32, 8))
    before = model[0].weight.clone()
    with pytest.raises(bs.FileError, match=r"it has other.weight, which this model does not have"):
        bs.load(model, path)
    assert torch.equal(model[0].weight, before)


@pytest.mark.parametrize("mode", ["INT4_SYM", "INT8_ASYM", "NVFP4"])
def test_an_ir_of_openvino(mode):
    path = RECORDED / "openvino" / f"{mode}.xml"
    with bs.checkpoint(path) as found:
        q = found["w"]
    model = nn.Module()
    model.register_parameter("w", nn.Parameter(torch.zeros(q.shape)))
    bs.load(model, path)
    assert torch.equal(model.w, q.dequantize(torch.float32))


@pytest.mark.parametrize("end", [".bin", ".pt"])
def test_a_pickle_is_not_opened(end, tmp_path):
    torch.save({"0.weight": torch.ones(2)}, tmp_path / f"m{end}")
    with pytest.raises(bs.FileError, match=r"opened, so blockscale never opens one."):
        bs.load(nn.Sequential(nn.Linear(2, 2)), tmp_path / f"m{end}")
