# SPDX-License-Identifier: BSD-3-Clause
"""A stored tensor, float or quantized, read in slabs, which together are the whole."""

import warnings

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from blockscale.core.joined_weights import of_stack
from blockscale.core.pack import to_stored
from blockscale.core.parse import parse
from blockscale.core.recipe import Recipe
from blockscale.files.directory.quantize_directory import quantize_directory
from blockscale.files.load import _read_qtensor
from blockscale.files.slabs.cutting import Cuts, cut_slabs
from blockscale.files.slabs.rows import OpenStoredModel, Rows, TransposedStack
from blockscale.files.stored_model import open_stored_model
from blockscale.files.stream import Reader
from tests.support.file_models import write_model

TENSORS = {
    "c_fc.weight": torch.randn(20, 12, generator=torch.Generator().manual_seed(0)),
    "conv.weight": torch.randn(6, 4, 3, 3, generator=torch.Generator().manual_seed(1)),
    "experts": torch.randn(3, 10, 16, generator=torch.Generator().manual_seed(2)),
    "up.weight": torch.randn(8, 6, 3, generator=torch.Generator().manual_seed(3)),
    "up.bias": torch.ones(6),
    "grouped.weight": torch.randn(8, 2, 2, 3, generator=torch.Generator().manual_seed(4)),
    "grouped.bias": torch.ones(4),
}
LAYOUTS = {"c_fc.weight": "transposed", "conv.weight": "channels_last", "experts": "plain"}
LAYOUTS |= {"up.weight": "transposed_channels_last"}
LAYOUTS |= {"grouped.weight": "transposed_channels_last:2"}
FORMATS = ("int4:group8:fp32", "nvfp4", "int8:channel1:fp32:asym", "binary:tensor:fp32")
FORMATS += ("nf4:flat4:fp32", "nf4:flat24:fp32", "nf4:flat7:fp32", "uint4:group8:fp16:asym(fp16)")
FORMATS += ("uint4:group4:(uint6:group2:fp16):offset(uint6:group2:fp16)", "int4:flat8@0:fp32")
FORMATS += ("uint4:group4:fp16:offset", "int4:block2x*:(int6:tensor:fp16)")
pytestmark = pytest.mark.filterwarnings("ignore:no cpu kernel runs:UserWarning")


def whole(rows: Rows, elements: int) -> Tensor:
    """All slabs of about `elements`, put together."""
    cuts = cut_slabs(rows.shape, rows.blocks, elements)
    pieces = [rows.read(cuts, slab) for slab in cuts.slabs]
    if elements == 1:
        assert len(pieces) > 1
    joined = torch.cat([piece.flatten(0, 1) if cuts.dim else piece for piece in pieces])
    return joined.reshape(rows.shape)


@pytest.mark.some(3)
@pytest.mark.parametrize("elements", [1, 50, 10**6])
@pytest.mark.parametrize("name", LAYOUTS)
def test_slabs_of_floats(name: str, elements: int, tmp_path) -> None:
    save_file(TENSORS, tmp_path / "model.safetensors")
    with OpenStoredModel(open_stored_model(tmp_path)) as tensors:
        for layout in {"plain", LAYOUTS[name]}:
            rows = tensors.rows(name, layout)
            expected = to_stored(TENSORS[name], layout)
            assert rows.shape == expected.shape
            assert torch.equal(whole(rows, elements), expected)


@pytest.mark.some(8)
@pytest.mark.parametrize("elements", [1, 50, 10**6])
@pytest.mark.parametrize("fmt", FORMATS)
def test_slabs_of_codes_are_dequantized(fmt: str, elements: int, tmp_path) -> None:
    model = write_model(tmp_path / "model", TENSORS, config={"model_type": "gpt2"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantize_directory(model, tmp_path / "out", Recipe(fmt, rules={"experts": fmt}))
    stored = open_stored_model(tmp_path / "out")
    with OpenStoredModel(stored) as tensors:
        for name, layout in LAYOUTS.items():
            if name == "experts" and name not in stored.metadata.tensors:
                assert "flat" in fmt  # blocks that would reach from one matrix into the next
                continue
            info = stored.metadata.tensors[name]
            expected_format = parse(fmt)
            if name == "experts":
                expected_format = of_stack(expected_format, info.shape)
            assert (info.layout, parse(info.format)) == (layout, expected_format)
            expected = _read_qtensor(stored, name).dequantize()
            assert torch.equal(whole(tensors.rows(name, layout), elements), expected)


def test_a_layout_that_it_is_not_stored_in(tmp_path) -> None:
    model = write_model(tmp_path / "model", TENSORS, config={"model_type": "gpt2"})
    quantize_directory(model, tmp_path / "out", "int8")
    stored = open_stored_model(tmp_path / "out")
    with OpenStoredModel(stored) as tensors:
        there = whole(tensors.rows("c_fc.weight", "transposed"), 1)
        plain = whole(tensors.rows("c_fc.weight", "plain"), 1)
    assert plain.shape == (20, 12)
    assert torch.equal(plain, there.t())


STACK = torch.arange(3 * 4 * 5, dtype=torch.float32).reshape(3, 4, 5)  # [E, k, n]


@pytest.mark.some(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 15, 100])
def test_slabs(rows, dtype, tmp_path):
    save_file({"w": STACK.to(dtype)}, tmp_path / "file")
    expected = STACK.to(dtype).mT
    with Reader(tmp_path / "file") as reader:
        stack = TransposedStack(reader, "w", (3, 5, 4))
        for shape, dim in (((15, 4), 0), ((3, 5, 4), 0), ((3, 5, 4), 1)):
            cuts = Cuts(shape, dim, rows)
            for slab in reversed(cuts.slabs):
                found = stack.read(cuts, slab)
                whole = expected.reshape(shape) if not dim else expected[slab.matrix][None]
                want = (
                    whole[slab.start : slab.stop] if not dim else whole[:, slab.start : slab.stop]
                )
                assert torch.equal(found, want)
                assert found.is_contiguous()
