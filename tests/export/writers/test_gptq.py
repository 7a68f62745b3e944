# SPDX-License-Identifier: BSD-3-Clause
"""GPTQ: what AutoGPTQ stored, again; symmetric models of version 1, others of version 2."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import blockscale as bs
from blockscale.core.parse import parse
from blockscale.export.writers import PlannedTensor, writer_of
from tests.export.checkpoints.layouts.recorded import cases
from tests.export.writers.again import same_bytes, written_again
from tests.support.conversion_models import tensors, value, write


@pytest.mark.parametrize("case", ["2", "3", "4", "8"])
def test_the_same_bytes(case: str, tmp_path: Path) -> None:
    made = written_again("gptq", case, "gptq", tmp_path)
    same_bytes("gptq", case, made, ("qzeros",))
    first = cases("gptq")[case][0]["a.qzeros"]  # of version 1: less one in each field
    if case in ("2", "4", "8"):
        bits = int(case)
        for shift in range(0, 32, bits):
            found, stored = (each >> shift & 2**bits - 1 for each in (made["a.qzeros"], first))
            assert torch.equal(found, (stored + 1) % 2**bits)


def test_what_it_does_not_hold() -> None:
    writer = writer_of("gptq")
    assert "uint2, uint3, uint4" in str(writer.holds(parse("uint5:group32:fp16:asym"), (32, 32)))
    assert "fp16 scales" in str(writer.holds(parse("uint4:group32:bf16:asym"), (32, 32)))
    assert "whole words" in str(writer.holds(parse("uint3:group4:fp16:asym"), (32, 36)))
    assert "3 dimensions" in str(writer.holds(parse("uint4:group32:fp16:asym"), (2, 32, 32)))
    both = [
        PlannedTensor(n, (32, 64), parse(f"uint{b}:group32:fp16:asym"))
        for n, b in (("a", 4), ("b", 8))
    ]
    assert "the same for the whole model" in str(writer.together(both))


def test_settings() -> None:
    planned = [PlannedTensor("a.weight", (32, 64), parse("uint4:channel0:fp16:asym"))]
    found = writer_of("gptq").config(planned, {"hidden_size": 3})
    assert found["hidden_size"] == 3
    settings = found["quantization_config"]
    assert (
        settings["sym"] is False
        and settings["group_size"] == -1
        and settings["checkpoint_format"] == "gptq_v2"
    )
    assert settings["quant_method"] == "gptq" and settings["bits"] == 4
    assert writer_of("gptq").more_files(planned)["quantize_config.json"]["desc_act"] is False


def fields(words: np.ndarray, bits: int) -> np.ndarray:
    """Words int32 [n, outputs], a stream of bits down each column -> fields [m, outputs]."""
    stream = np.unpackbits(words.T.copy().view(np.uint8), axis=1, bitorder="little")
    parts = stream.reshape(words.shape[1], -1, bits) << np.arange(bits)
    return parts.sum(-1).T.astype(np.int64)


def dequantized(folder: Path, layer: str) -> np.ndarray:
    """AutoGPTQ's formula (qlinear_cuda_old.py): scale * (code - (zero + 1)); in v2 without 1."""
    settings = json.loads((folder / "config.json").read_text())["quantization_config"]
    stored = load_file(folder / "model.safetensors")
    parts = ("qweight", "qzeros", "scales", "g_idx")
    held = {f"{layer}.{part}": stored[f"{layer}.{part}"].numpy() for part in parts}
    bits, codes = settings["bits"], fields(held[f"{layer}.qweight"], settings["bits"])
    zeros = fields(held[f"{layer}.qzeros"].T, bits).T + (settings["checkpoint_format"] == "gptq")
    group = held[f"{layer}.g_idx"]
    scales = held[f"{layer}.scales"].astype(np.float32)
    return (scales[group] * (codes - zeros[group])).T.astype(np.float32)


@pytest.mark.some(4)
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("signed", [True, False])
def test_symmetric_models(bits: int, signed: bool, tmp_path: Path) -> None:
    """Every zero point 2^(bits - 1), however the source has it: of version 1, `sym` true."""
    fmt = f"int{bits}:group32:fp16:full" if signed else f"uint{bits}:group32:fp16:asym"
    held = tensors(fmt)
    for q in held.values():
        if isinstance(q, bs.QTensor) and not signed:
            q.qparams.zero_point.fill_(2 ** (bits - 1))
    source, folder = write(tmp_path / "m", held), tmp_path / "out"
    done = bs.export.convert_checkpoint(source, folder, "gptq")
    assert {t.written for t in done.of("exact")} == {f"int{bits}:group32:fp16:full"}
    for name in ("config.json", "quantize_config.json"):
        told = json.loads((folder / name).read_text())
        told = told.get("quantization_config", told)
        assert told["sym"] is True and told["checkpoint_format"] == told["format"] == "gptq"
    for name, q in held.items():
        if isinstance(q, bs.QTensor):
            layer = name.removesuffix(".weight")
            assert np.array_equal(dequantized(folder, layer), q.dequantize().numpy()), name
    assert bool(done.notes) == (bits in (2, 3))
    with bs.checkpoint(folder) as again:  # our own reader tells the version
        assert not again.warnings
        for name, q in held.items():
            assert torch.equal(value(again[name]), value(q)), name


def test_one_zero_point_makes_a_model_of_version_2(tmp_path: Path) -> None:
    """Symmetric tensors beside it get zero points: a model has one `sym`."""
    held = tensors("int4:group32:fp16:full")
    names = [name for name, q in held.items() if isinstance(q, bs.QTensor)]
    other = tensors("uint4:group32:fp16:asym")
    other[names[0]].qparams.zero_point.fill_(8)
    other[names[0]].qparams.zero_point[0, 0] = 7
    held[names[0]] = other[names[0]]
    folder = tmp_path / "out"
    done = bs.export.convert_checkpoint(write(tmp_path / "m", held), folder, "gptq")
    assert {t.written for t in done.of("exact")} == {"uint4:group32:fp16:asym"}
    told = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert told["sym"] is False and told["checkpoint_format"] == "gptq_v2"
    assert "vLLM (0.32.0) supports only symmetric GPTQ" in done.notes[0]
    for name in names:
        layer = name.removesuffix(".weight")
        assert np.array_equal(dequantized(folder, layer), held[name].dequantize().numpy()), name


def test_recipes_that_would_need_both(tmp_path: Path) -> None:
    source = write(tmp_path / "m", tensors("nf4:group32:fp16"))
    recipe = bs.Recipe("uint4:group32:fp16:asym", rules={"*q_proj": "int4:group32:fp16:full"})
    with pytest.raises(
        ValueError, match="whether it is symmetric must be the same for the whole model"
    ):
        bs.export.convert_checkpoint(source, tmp_path / "out", "gptq", requantize=recipe)
    assert not (tmp_path / "out").exists()
