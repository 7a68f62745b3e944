# SPDX-License-Identifier: BSD-3-Clause
"""Directories are laid out before their tensors are there, in shards where they are large."""

import json
from pathlib import Path

import pytest
import torch

import blockscale as bs
from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.export.conversion import directory
from blockscale.export.conversion import directory as in_slabs
from blockscale.export.conversion.directory import dequantized, requantized, rows_of_slab
from blockscale.export.writers import PlannedTensor, writer_of
from blockscale.ops.tensor import QTensor
from tests.support.conversion_models import tensors, write
from tests.support.same import same


def test_shards_and_their_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "SHARD", 100_000)
    held = tensors("uint4:group128:fp16:asym")
    folder = write(tmp_path / "m", held, "gptq")
    files = sorted(each.name for each in folder.glob("*.safetensors"))
    assert len(files) > 2 and files[0] == f"model-00001-of-{len(files):05}.safetensors"
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == set(files)
    with bs.checkpoint(folder) as found:
        assert set(found) == set(held)
        q = found["model.layers.0.mlp.up_proj.weight"]
        assert torch.equal(q.packed, held["model.layers.0.mlp.up_proj.weight"].packed)


def test_two_tensors_of_one_name(tmp_path: Path) -> None:
    fmt = bs.parse("uint4:group32:fp16:asym")
    planned = [PlannedTensor("a.weight", (32, 32), fmt), PlannedTensor("a.scales", (3,), None)]
    with pytest.raises(ValueError, match=r"a\.scales and a\.weight would both be stored as a\.sca"):
        directory.Directory(tmp_path, writer_of("gptq"), planned, {})


# What is done to some rows at a time is what would be done to the whole.

SOURCES = ("nf4:group64:fp32", "int8:tile128x128:fp32", "uint4:flat100:fp16:asym")
CUT = ("int8:group32:fp16:full", "int8:token:fp32", "e4m3:tile128x128:fp32",
       "e2m1:group16:(e4m3:token:fp32)", "uint4:group32:(uint6:group8:fp16):asym")  # fmt: skip
WHOLE = ("int8:tensor:fp32", "nvfp4", "int8:channel1:fp32", "int4:flat64:fp32")


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_slabs, "SLAB", 1 << 10)


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("source", SOURCES)
def test_values(source: str) -> None:
    q = bs.quantize(torch.randn(300, 128), source)
    slabs = list(dequantized(q, rows_of_slab((300, 128))))
    assert [len(each) for each in slabs] == [128, 128, 44]
    assert same(torch.cat(slabs), q.dequantize())
    whole = q.dequantize().to(torch.float16)
    assert same(torch.cat(list(dequantized(whole, 7))), whole.float())
    assert list(dequantized(torch.tensor(2.0), 128)) == [torch.tensor([2.0])]


@pytest.mark.some(4)
@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("wanted", [*CUT, *WHOLE])
def test_again(source: str, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(300, 128)
    x[7, 5] = 90.0  # blocks that reach further than a slab see it, or do not
    q, sizes = bs.quantize(x, source), []

    def counted(x: torch.Tensor, fmt: Format) -> QTensor:
        sizes.append(len(x))
        return bs.quantize(x, fmt)

    monkeypatch.setattr(in_slabs, "quantize", counted)
    made, expected = requantized(q, parse(wanted)), bs.quantize(q.dequantize(), wanted)
    assert sizes == ([128, 128, 44] if wanted in CUT else [300])
    assert same(made.packed, expected.packed) and same(made.dequantize(), expected.dequantize())
    for part, other in zip(made.qparams, expected.qparams, strict=True):
        assert (part is None and other is None) or same(part, other)


@pytest.mark.usefixtures("_small")
def test_random_rounding_and_few_dimensions() -> None:
    q = bs.quantize(torch.randn(300, 128), SOURCES[0])
    torch.manual_seed(3)
    made = requantized(q, parse("int8:token:fp32:stochastic"))
    torch.manual_seed(3)
    expected = bs.quantize(q.dequantize(), "int8:token:fp32:stochastic")
    assert same(made.packed, expected.packed)
    for shape in ((64,), (2, 3, 64), (0, 64)):
        q = bs.quantize(torch.randn(shape), SOURCES[0])
        made, expected = requantized(q, parse(CUT[0])), bs.quantize(q.dequantize(), CUT[0])
        assert same(made.packed, expected.packed) and made.shape == expected.shape
