# SPDX-License-Identifier: BSD-3-Clause
"""Scales that are chosen over cuts have the bits of one process."""

import itertools

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.core import shared_scales
from blockscale.core.cuts import deal, share, unit
from blockscale.core.parse import formats, parse
from tests.support.shares import quantized, same, weight
from tests.support.some import crossed

MORE = (
    "int4:tile32x16:fp16",
    "int8:channel1:fp32",
    "int8:token:fp32:asym",
    "uint4:group32:fp16:offset",
    "e2m1:group16:(e4m3:tile8x4:fp32)",
    "ternary:group32:fp32",
    "binary:tensor:fp16",
    "int3:group32:fp32",
    "int4:group32:(uint6:group8:fp16)",
    "int4:flat32:fp32",
    "uint4:group32:fp16:offset(uint6:group4:fp16)",
)


def places_of(name: str, shape: tuple[int, ...], dim: int, count: int, on_units: bool):
    fmt, n = parse(name), shape[dim]
    step = unit(fmt, shape, dim)
    if on_units:
        return deal(n, count, step)
    byte = 8 if dim == len(shape) - 1 else 1  # codes of each width share bytes
    return deal(n, count, byte if step != byte else 1 if dim < len(shape) - 1 else 8)


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("name", "dim", "count"), crossed(3, [*formats(), *MORE], (0, 1), (2, 3, 4))
)
@pytest.mark.parametrize("on_units", (True, False))
def test_ranks_have_the_bits_of_one_process(name: str, dim: int, count: int, on_units: bool):
    """On units and off; (250, 360) leaves a last rank of four without an element."""
    for shape in ((96, 384), (250, 360)):
        if "flat" in name and dim == 1:
            with pytest.raises(ValueError, match="goes through the blocks"):
                unit(parse(name), shape, dim)
            continue
        x = weight(*shape)
        whole, places = bs.quantize(x, name), places_of(name, shape, dim, count, on_units)
        parts = quantized(x, name, dim, places)
        for (start, stop), part in zip(itertools.pairwise(places), parts, strict=True):
            assert same(part, whole.narrow(dim, start, stop - start)), (shape, start, stop)
        each = [part.dequantize() for part in parts if part.numel()]
        torch.testing.assert_close(
            torch.cat(each, dim), whole.dequantize(), rtol=0, atol=0, equal_nan=True
        )


@pytest.mark.parametrize(
    ("name", "dim"), crossed(3, [*formats(), "int8:block*x16x32:fp32"], (0, 1, 2))
)
def test_stacks_of_matrices(name: str, dim: int) -> None:
    shape = (4, 64, 96)
    x = weight(*shape)
    whole = bs.quantize(x, name)
    for places in (
        deal(shape[dim], 2, unit(parse(name), shape, dim)),
        deal(shape[dim], 4, 8 if dim == 2 else 1),
    ):
        parts = quantized(x, name, dim, places)
        for (start, stop), part in zip(itertools.pairwise(places), parts, strict=True):
            assert same(part, whole.narrow(dim, start, stop - start))


def test_scales_that_compare_errors_between_blocks() -> None:
    x = weight(8, 64)
    for dim, places in ((0, (0, 3, 8)), (1, (0, 16, 64))):
        whole = bs.quantize(x, "e2m1:group16:e4m3/four_six")
        for at, part in enumerate(quantized(x, "e2m1:group16:e4m3/four_six", dim, places)):
            start, stop = places[at : at + 2]
            assert same(part, whole.narrow(dim, start, stop - start))


def test_nothing_is_said_where_nothing_is_shared() -> None:
    """A cut between blocks whose scales nobody shares needs no other rank."""

    def silent(x: Tensor, how: str) -> None:
        raise AssertionError("a merge")

    x = weight(64, 128)
    for name, dim in (("mxfp4", 0), ("mxfp4", 1), ("int8_channel", 0), ("int8_token", 0)):
        own = share(x.shape, dim, deal(x.shape[dim], 2, 32), 0)
        shared_scales.choose(x.narrow(dim, 0, own.stop), parse(name), own, silent)


def test_blocks_without_a_finite_number_in_one_part() -> None:
    """An offset's range need not hold 0, and that of a part without numbers holds nothing."""
    x = weight(4, 64) + 1000
    x[2, :40] = torch.nan
    whole = bs.quantize(x, "uint4:tensor:fp16:offset")
    parts = quantized(x, "uint4:tensor:fp16:offset", 1, (0, 32, 64))
    assert all(torch.equal(part.qparams.offset, whole.qparams.offset) for part in parts)
    whole = bs.quantize(x, "uint4:group64:fp16:offset")
    parts = quantized(x, "uint4:group64:fp16:offset", 1, (0, 32, 64))
    assert all(torch.equal(part.qparams.offset, whole.qparams.offset) for part in parts)
    x[2] = torch.nan
    whole = bs.quantize(x, "uint4:group64:fp16:offset")
    parts = quantized(x, "uint4:group64:fp16:offset", 1, (0, 32, 64))
    assert all(torch.equal(part.qparams.scale, whole.qparams.scale) for part in parts)


def test_what_cannot_be_chosen_over_cuts_is_refused_by_name() -> None:
    x = weight(8, 64)
    with pytest.raises(ValueError, match="book4 is one table that a whole tensor teaches"):
        quantized(x.nan_to_num(0, 1, 1), "book4:group32:fp32", 0, (0, 4, 8))
    with pytest.raises(ValueError, match=r"the errors of a whole block .*use e2m1:group16:e4m3"):
        quantized(x, "e2m1:group16:e4m3/four_six", 1, (0, 24, 64))
    own = share((8, 64), 0, (0, 4, 8), 0)
    with pytest.raises(ValueError, match=r"expected a part of shape \(4, 64\), found \(8, 64\)"):
        shared_scales.choose(x, parse("int8"), own, lambda *_: None)
    with pytest.raises(ValueError, match="must be supplied"):
        quantized(x, "int8:tensor:e8m0/given", 0, (0, 4, 8))
