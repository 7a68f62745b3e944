# SPDX-License-Identifier: BSD-3-Clause
"""Cuts of quantized tensors: values stay."""

import pytest
import torch

import blockscale as bs
from blockscale.core.cuts import deal, placements, refine, share, unit
from blockscale.core.parse import parse
from tests.support.shares import weight


def test_places() -> None:
    assert deal(10, 3) == (0, 4, 8, 10)
    assert deal(360, 4, 128) == (0, 128, 256, 360, 360)
    assert deal(0, 2, 16) == (0, 0, 0)


def test_a_part_of_no_element() -> None:
    """It has no scale of its own, and what all share."""
    q = bs.quantize(weight(8, 360), "e2m1:group128:e4m3")
    none = q.narrow(1, 360, 0)
    assert none.shape == (8, 0) and none.packed.shape == none.qparams.scale.shape == (8, 0)
    assert none.qparams.outer.shape == (1, 1) and none.dequantize().shape == (8, 0)


def test_what_is_shared_and_what_is_cut() -> None:
    shape = (64, 128)
    assert placements(parse("nvfp4"), shape, 0) == {"codes": 0, "scale": 0, "outer": None}
    assert placements(parse("int8_channel"), shape, -1) == {"codes": 1, "scale": None}
    assert placements(parse("uint8:token:fp32:asym"), shape, 0) == {
        "codes": 0, "scale": 0, "zero_point": 0,
    }  # fmt: skip
    assert placements(parse("int4:flat64:fp32"), shape, 0) == {"codes": 0, "scale": 1}
    assert placements(parse("book4:group64:fp32"), shape, 0)["book"] is None


@pytest.mark.parametrize(
    ("name", "shape", "dim", "expected"),
    [
        ("mxfp4", (64, 128), 0, 1),
        ("mxfp4", (64, 128), 1, 32),
        ("int4", (64, 256), 1, 128),
        ("int3:token:fp32", (64, 256), 1, 8),
        ("int4:tensor:fp32", (64, 256), 1, 2),
        ("int8:tile32x16:fp32", (64, 256), 0, 32),
        ("int4:group32:(uint6:group8:fp16)", (64, 512), 1, 256),
        ("int4:flat96:fp32", (64, 64), 0, 3),
        ("int4:flat96:(e4m3:flat8:fp32)", (64, 64), 0, 12),
        ("int8_channel", (8, 64, 128), 0, 1),
    ],
)
def test_units(name, shape, dim, expected) -> None:
    """As the arithmetic of block sizes has them, by hand."""
    assert unit(parse(name), shape, dim) == expected


@pytest.mark.parametrize(
    ("name", "shape", "cut", "expected"),
    [
        ("int4", (8, 384), (1, 192, 384), "int4:group64:fp32"),
        ("int4", (8, 384), (1, 128, 384), "int4:group128:fp32"),
        ("int4", (8, 360), (1, 256, 360), "int4:group128:fp32"),
        ("int8:tile32x16:fp32", (64, 64), (0, 8, 24), "int8:tile8x16:fp32"),
        (
            "int4:group32:(uint6:group8:fp16)",
            (8, 512),
            (1, 128, 256),
            "int4:group32:(uint6:group4:fp16)",
        ),
        (
            "int4:group32:(uint6:group8:fp16)",
            (8, 512),
            (1, 16, 512),
            "int4:group16:(uint6:group1:fp16)",
        ),
        ("int4:flat96:fp32", (64, 64), (0, 1, 64), "int4:flat32:fp32"),
        ("int4:block2x32x16:fp32", (4, 64, 64), (0, 1, 3), "int4:tile32x16:fp32"),
    ],
)
def test_other_cuts_refine_blocks(name, shape, cut, expected) -> None:
    dim, start, stop = cut
    own = share(shape, dim, (0, start, stop, shape[dim]), 1)
    assert str(refine(parse(name), own)) == expected


def test_what_cannot_be_cut_is_refused_by_name() -> None:
    q = bs.quantize(weight(8, 64), "int4:flat32:fp32")
    with pytest.raises(
        ValueError, match="int4:flat32:fp32: it runs over the flattened tensor, and a"
    ):
        q.narrow(1, 0, 32)
    with pytest.raises(ValueError, match="lie far apart"):
        bs.quantize(weight(8, 64), "int4:flat32@0:fp32").narrow(0, 0, 4)
    with pytest.raises(
        ValueError, match=r"int4:group32.*a cut at 3 of 64 parts 2 codes that share"
    ):
        bs.quantize(weight(8, 64), "int4:group32:fp32").narrow(1, 3, 5)
    with pytest.raises(ValueError, match="no indices 0 to 65 along dimension 1"):
        bs.quantize(weight(8, 64), "int8").narrow(1, 0, 65)
    with pytest.raises(ValueError, match="no dimension 0: the tensor has 0, so it cannot be cut"):
        unit(parse("int8"), (), 0)
    with pytest.raises(ValueError, match=r"is cut at places from 0 to 8 in order, found \(0, 9\)"):
        share((8, 64), 0, (0, 9), 0)
    with pytest.raises(ValueError, match="expected a part from 0 to 1, found 2"):
        share((8, 64), 0, (0, 4, 8), 2)


@pytest.mark.filterwarnings("ignore:no cpu kernel")
def test_a_learned_table_goes_with_every_part() -> None:
    q = bs.quantize(weight(8, 64).nan_to_num(0, 1, 1), "book4:group32:fp32")
    part = q.narrow(1, 48, 16)
    assert torch.equal(part.dequantize(), q.dequantize()[:, 48:])
