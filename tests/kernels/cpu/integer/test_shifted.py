# SPDX-License-Identifier: BSD-3-Clause
"""Products in integer instructions alone, of every instruction set: beside Python's integers where
extreme codes reach 2^24, 2^31 and more, beside the reference elsewhere."""

import itertools
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.kernels.cpu.integer import shifted
from blockscale.kernels.registry import supporting, unavailable
from blockscale.ops.integer import INTEGER_OPS
from tests.kernels.cpu.integer.equal import Floats, equal
from tests.support.integer_oracle import INT8, INT16, LIMITS, UINT8, ended, shifts, whole

pytestmark = pytest.mark.skipif(unavailable("cpu") is not None, reason=str(unavailable("cpu")))
LINEAR = INTEGER_OPS["integer_linear"]
FORMATS = ((INT8, 0), (UINT8, 77), (INT16, -5))


def sums_of(x: Tensor, weight: Tensor, bias: Tensor | None, zero: int) -> list[list[int]]:
    """Python's: x [rows, k] less zero times weight [n, k], and the bias."""
    offset = [0] * weight.shape[0] if bias is None else bias.tolist()
    rows = [[code - zero for code in row] for row in x.tolist()]
    weights = weight.tolist()
    return [
        [sum(map(int.__mul__, row, w)) + b for w, b in zip(weights, offset, strict=True)]
        for row in rows
    ]


def check(
    sums: list[list[int]], args: tuple[Any, ...], shift: Tensor, zero: int, fmt: str,
    low: int, high: int,
) -> None:  # fmt: skip
    """The op gives what Python does, and by the kernel."""
    each = shift.expand(len(sums[0])).tolist()
    rounding = bs.parse(fmt).rounding if fmt else "down"
    expected = [
        [ended(acc, s, zero, low, high, rounding) for acc, s in zip(row, each, strict=True)]
        for row in sums
    ]
    ends = (shift, zero, low, high, fmt) if fmt else (shift, 0, 0, 0, "")
    assert supporting("integer_linear", "cpu", (), (*args, *ends)) is not None
    assert LINEAR(*args, *ends).tolist() == expected


@cache
def extremes(
    bound: int, dtype: torch.dtype, wide: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, list[list[int]]]:
    """x, weight and bias of the extreme codes alone, and their sums: `bound` is the largest."""
    code, factor = torch.iinfo(dtype), torch.iinfo(wide)
    k = bound // (max(code.max, -code.min) * -factor.min)
    x = torch.tensor([[code.max], [code.min]]).repeat(1, k).to(dtype)
    w = torch.tensor([[factor.min], [factor.max], [0]]).repeat(1, k).to(wide)
    products = x.long() @ w.long().t()
    sign = products.gather(0, products.abs().argmax(0, keepdim=True))[0].sign()
    bias = (sign * (bound - products.abs().amax(0))).clamp(-(2**31) + 1, 2**31 - 1).int()
    sums = sums_of(x, w, bias, 0)
    assert max(abs(each) for row in sums for each in row) == bound
    return x, w, bias, sums


BOUNDS = [2**24 - 1, 2**24 + 1, 2**31 - 1, 2**31, 2**31 + 1]


@pytest.mark.some(6)
@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
def test_extreme_codes_of_eight_bits(isa, dtype, bound):
    """From 2^24 + 1 on float32 would round, from 2^31 on int32 could not hold them."""
    del isa
    x, w, bias, sums = extremes(bound, dtype, torch.int8)
    args = (x, w, bias, 0, bound)
    for places in ([0, 1, 8], [16, 24, 31], [23, 33, 62], [-1, 30, -31]):
        for fmt, zero in FORMATS:
            check(sums, args, shifts(*places), zero, fmt, *LIMITS[fmt])
    check(sums, args, shifts(0), 0, "", -(2**40), 2**40)
    assert LINEAR(*args, shifts(0), 0, 0, 0, "").dtype == (
        torch.int32 if bound < 2**31 else torch.int64
    )


@pytest.mark.some(3)
@pytest.mark.parametrize("bound", BOUNDS)
def test_extreme_codes_of_sixteen_bits(isa, bound):
    """As two halves, of x, of the weight and of both."""
    del isa
    for dtype, wide in (
        (torch.int16, torch.int8), (torch.uint8, torch.int16), (torch.int16, torch.int16),
    ):  # fmt: skip
        if bound < 2**31 and wide == dtype:
            continue  # one product is 2^30
        x, w, bias, sums = extremes(bound, dtype, wide)
        for places in ([1, 8, 16], [17, 24, 31], [-2, 33, 23]):
            for fmt, zero in FORMATS:
                check(sums, (x, w, bias, 0, bound), shifts(*places), zero, fmt, *LIMITS[fmt])
        check(sums, (x, w, bias, 0, bound), shifts(0), 0, "", -(2**40), 2**40)


@pytest.mark.some(2)
@pytest.mark.parametrize(("rows", "n", "k"), [(1, 33, 15), (2, 1, 1), (5, 31, 17), (33, 65, 130)])
def test_odd_shapes_zero_points_and_a_shift_for_each_output(isa, rows, n, k):
    del isa
    kinds = [torch.int8, torch.uint8, torch.int16]
    for dtype, wide in itertools.product(kinds, (torch.int8, torch.int16)):
        code, factor = torch.iinfo(dtype), torch.iinfo(wide)
        x = whole(code.min, code.max, rows, k, dtype=dtype)
        w = whole(factor.min, factor.max, n, k, dtype=wide)
        bias, each = whole(-(2**20), 2**20, n), whole(-3, 30, n)
        for i, zero in enumerate((0, 9, code.min, code.max)):
            largest = int(w.long().abs().sum(1).amax()) * (code.max - code.min) + 2**20
            fmt, point = FORMATS[(i + k) % 3]
            args = (x, w, bias if i % 2 else None, zero, largest)
            equal("integer_linear", *args, each, point, *LIMITS[fmt], fmt)
            equal("integer_linear", *args, each[:1], point, max(point, -100), 90, fmt)


@pytest.mark.some(3)
@pytest.mark.parametrize("rounding", ["", "nearest_away", "toward_zero", "down", "up"])
def test_every_rounding_at_ties(isa, rounding):
    """All residues of a shift by 3, and those of one by 31 where a sum is half of it."""
    del isa
    x = torch.arange(-128, 128, dtype=torch.int8)[:, None]
    w = torch.tensor([[1], [-1], [127], [1], [0]], dtype=torch.int8)
    bias = torch.tensor([0, 1, -5, 2**30, -(2**30)], dtype=torch.int32)
    fmt = f"{INT8}:{rounding}" if rounding else INT8
    for place in (0, 1, 3, 7, 30, 31):
        for largest in (2**30 + 2**15, 2**33):
            args = (x, w, bias, 0, largest)
            check(sums_of(x, w, bias, 0), args, shifts(place), 3, fmt, *LIMITS[INT8])


@pytest.mark.parametrize("largest", [2**30, 2**40])
def test_pieces_along_k(isa, monkeypatch, largest):
    """Where int64 holds the sums, k is cut: whatever the cuts, the sum is the same."""
    del isa
    monkeypatch.setattr(shifted, "_LONGEST", {torch.int8: 24, torch.int16: 24})
    x, wide = whole(0, 255, 3, 70, dtype=torch.uint8), whole(-(2**15), 2**15 - 1, 3, 70)
    for codes, dtype in ((x, torch.int8), (wide.to(torch.int16), torch.int8), (x, torch.int16)):
        ends = torch.iinfo(dtype)
        w, bias = whole(ends.min, ends.max, 34, 70, dtype=dtype), whole(-99, 99, 34)
        args = (codes, w, bias, 3, largest, whole(5, 20, 34), 0, *LIMITS[INT16], INT16)
        equal("integer_linear", *args)
        image, kernel = codes[:, :66].reshape(1, 11, 3, 6), w[:, :54].contiguous()
        where = ([34, 6, 3, 3], [1, 2], [1, 1], [1, 1], 1, False, [])
        equal("integer_conv", image, kernel, bias, *where, *args[3:])


@pytest.mark.some(3)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16])
@pytest.mark.parametrize("largest", [2**24, 2**31])
def test_convolutions(isa, dtype, largest):
    """Edges are the zero point; few channels and many; one to three dimensions."""
    del isa
    code = torch.iinfo(dtype)
    for (channels, dims), (fmt, zero) in zip(((3, 1), (40, 2), (5, 3)), FORMATS, strict=True):
        x = whole(code.min, code.max, 2, *(7, 4, 3)[:dims], channels, dtype=dtype)
        kernel = (3, 2, 2)[:dims]
        k = channels * 3 * 2 ** (dims - 1)
        reach = largest // (k * (code.max - code.min))
        w = whole(-min(reach, 128), min(reach, 127), 33, k, dtype=torch.int8)
        settings = ([2, 1, 1][:dims], [1, 1, 0][:dims], [1, 2, 1][:dims])
        where = ([33, channels, *kernel], *settings, 1, False, [])
        ends = (whole(-1, 20, 33), zero, *LIMITS[fmt], fmt)
        equal("integer_conv", x, w, whole(-9, 9, 33), *where, 9, largest, *ends)


@pytest.mark.parametrize("largest", [2**24, 2**24 + 1, 2**31, 2**53 + 1])
def test_no_floats_and_no_copies_of_the_weight(largest):
    """Neither at the bounds where floats held sums, nor beyond those where the reference ran."""
    w = whole(-128, 127, 40, 64, dtype=torch.int8)
    for x in (whole(0, 255, 3, 64, dtype=torch.uint8), whole(-9, 9, 3, 64).to(torch.int16)):
        args = (x, w, whole(-9, 9, 40), 4, largest, shifts(9), 0, *LIMITS[INT8], INT8)
        first = LINEAR(*args)  # makes the weight ready
        with Floats():
            assert torch.equal(LINEAR(*args), first)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16])
def test_a_weight_that_torch_did_not_see_change(dtype):
    """Halves and pieces are copies: they are made again, too."""
    x, w = whole(-9, 9, 2, 8, dtype=torch.int16), whole(-9, 9, 3, 8, dtype=dtype)
    args = (x, w, None, 0, 2**20, shifts(0), 0, *LIMITS[INT16], INT16)
    before, count = LINEAR(*args), len(shifted._READY)
    w.numpy()[:] *= -1
    assert torch.equal(LINEAR(*args), -before) and len(shifted._READY) == count
    del args, w
    assert len(shifted._READY) == count - 1


def test_far_shifts_of_long_halves():
    """Sums below 2^31 whose low halves alone pass it: shifts of 32 and more add them in int64."""
    k = 2**17
    x = torch.tensor([[255, -1]]).repeat(2, k // 2).to(torch.int16)
    w = torch.tensor([[127, 126]]).repeat(2, k // 2).to(torch.int8)
    w[1] = -w[1]
    assert int((x & 255).long()[0] @ w.long()[0]) > 2**31
    sums = sums_of(x, w, None, 0)
    assert sums == [[2**16 * (255 * 127 - 126), -(2**16) * (255 * 127 - 126)]] * 2
    args = (x, w, None, 0, 2**31 - 1)
    for places in ([31, 32], [32, 40], [30, 29]):
        check(sums, args, shifts(*places), 0, INT16, *LIMITS[INT16])


def test_what_it_leaves_to_others():
    """Weights of 32 bits, zero points that are no codes, roundings by chance, packed codes."""
    x, w = whole(0, 9, 2, 8, dtype=torch.uint8), whole(-9, 9, 3, 8, dtype=torch.int8)
    assert shifted.takes(x, w, 255, INT8) and not shifted.takes(x, w, 256, INT8)
    assert not shifted.takes(x, w, -1, "") and not shifted.takes(x, w.int(), 0, INT8)
    assert not shifted.takes(x, w, 0, "int4:tensor:pow2/floor")
    assert not shifted.takes(x, w, 0, "int8:tensor:fp32:stochastic")
    assert not shifted.takes(x[:0], w, 0, INT8)
