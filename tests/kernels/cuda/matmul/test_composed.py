# SPDX-License-Identifier: BSD-3-Clause
"""Integers with offsets or float zero points: whole ones, what these leave, and the products."""

import pytest
import torch

from blockscale.core.operand import UNQUANTIZED, Operand, operand
from blockscale.core.parse import parse
from blockscale.kernels.cuda.matmul.composed import (
    LEAST_K,
    block_sums,
    halves,
    least_rows,
    recentre_weight,
    takes_halves,
    with_rest,
    with_zero_points,
)
from blockscale.kernels.cuda.matmul.finish import NO_ENDS, Ends
from blockscale.kernels.cuda.quantize import decoded, dequantize
from blockscale.kernels.registry import use
from blockscale.ops import primitives as P
from blockscale.ops.linear import linear
from tests.support.cuda_equal import DEVICE, DTYPES
from tests.support.cuda_matmul_exact import ROUNDS, ulps_of
from tests.support.some import crossed

FORMATS = [
    "uint4:group32:fp16:offset", "int4:group64:fp32:offset", "uint8:token:fp16:offset",
    "int4:tile16x32:bf16:offset", "int3:group16:fp32:offset", "uint4:channel0:fp32:offset",
    "uint4:group24:fp32:offset", "int8:group32:fp32:offset", "uint4:group32:e8m0/floor:offset",
    "uint4:group32:fp16:asym(fp16)", "uint8:token:fp32:asym(fp32)",
    "int4:tile16x32:bf16:asym(bf16)", "int8:group64:fp32:asym(fp16)", "int12:token:fp32:asym(fp32)",
]  # fmt: skip


def weight(fmt: str, n: int, k: int, far: float):
    """A weight whose blocks lie around 0 or `far` away from it, and its values."""
    w = torch.randn(n, k) + far * torch.randn(n, 1)
    codes, *parts = P.choose_quantize.reference(w, fmt, None)
    stored = operand(codes, P.from_list(parts, parse(fmt)), fmt, k)
    values = P.dequantize.reference(stored, torch.float32).double()
    parts = P.from_list([part.to(DEVICE) for part in parts], parse(fmt))
    return operand(codes.to(DEVICE), parts, fmt, k), values


def test_what_is_left_is_no_more_than_half_a_step() -> None:
    """Where 0 lies in a block's range; elsewhere the zero point is the nearest code."""
    stored, _ = weight("uint4:group32:fp16:offset", 16, 128, 0.3)
    zero, rest = recentre_weight(stored)
    step, offset = stored.scale.double(), stored.more[0].double()
    assert torch.equal(zero.double(), (-offset / step).round().clamp(0, 15))
    assert torch.equal(rest.double(), zero * step + offset)  # exact: few bits
    inside = (-offset / step >= 0) & (-offset / step <= 15)
    assert bool(inside.any()) and bool((rest.abs() <= step / 2)[inside].all())


def test_what_zero_points_leave() -> None:
    """Given ones may lie beyond all codes."""
    stored, _ = weight("uint4:group32:fp32:asym(fp32)", 16, 128, 0.3)
    given = torch.linspace(-40, 60, 64, device=DEVICE).reshape(16, 4)
    zero, rest = recentre_weight(stored._replace(zero_point=given))
    assert torch.equal(zero, given.round().clamp(0, 15).int())
    assert torch.equal(rest, (zero - given) * stored.scale)


@pytest.mark.parametrize(("k", "width"), [(128, 32), (100, 24), (3000, 3000), (64, 64)])
def test_sums_of_blocks(k: int, width: int) -> None:
    x = torch.randn(3, k, device=DEVICE)
    for given in (x, x.half(), torch.randn(k, 3, device=DEVICE).t()):
        found = block_sums(given, width)
        parts = given.double().split(width, 1)
        exact = torch.stack([part.sum(1) for part in parts], 1)
        size = torch.stack([part.abs().sum(1) for part in parts], 1)
        assert bool(((found.double() - exact).abs() <= 2.0**-20 * size).all())


@pytest.mark.parametrize("rows", [1, 19, 70])
@pytest.mark.parametrize("count", [3, 16, 70])
def test_products_of_what_is_left(count: int, rows: int) -> None:
    left, rest = torch.randn(rows, count, device=DEVICE), torch.randn(67, count, device=DEVICE)
    first, x_row = torch.randn(rows, 67, device=DEVICE), torch.rand(rows, device=DEVICE)
    for ends in (NO_ENDS, Ends(x_row, torch.randn(67, device=DEVICE))):
        y = with_rest(left, rest, first, ends, torch.full_like(first, torch.nan)).double()
        exact, size = left.double() @ rest.double().T, left.abs().double() @ rest.abs().double().T
        exact, size = exact + first, size + first.abs()
        if ends.x_row is not None and ends.bias is not None:
            by, bias = x_row[:, None], ends.bias
            exact, size = exact * by + bias, size * by + bias.abs()
        assert bool(((y - exact).abs() <= 2.0**-20 * size).all())


@pytest.mark.some(12)
@pytest.mark.parametrize(("fmt", "far"), crossed(3, FORMATS, [0.0, 10.0]))
def test_linear(fmt: str, far: float) -> None:
    for m, k, n, dtype in zip((3, 9, 18), (128, 160, 96), (17, 33, 5), DTYPES, strict=True):
        stored, values = weight(fmt, n, k, far)
        x, bias = torch.randn(m, k).to(dtype), torch.randn(n).to(dtype)
        with use("cuda"):
            y = linear(x.to(DEVICE), stored, bias.to(DEVICE), UNQUANTIZED).cpu().double()
        exact, size = x.double() @ values.T + bias, x.double().abs() @ values.abs().T + bias.abs()
        bound = ulps_of(x, fmt) * 2.0**-24 * size
        bound = bound + ROUNDS[dtype] * (exact.abs() + bound)
        assert bool(((y - exact).abs() <= bound).all()), (m, dtype)


def test_which_formats() -> None:
    assert with_zero_points("uint4:group32:fp16:offset", 128) == "uint4:group32:fp16:asym"
    assert with_zero_points("int4:group64:fp32:offset", 128) == "int4:group64:fp32:asym"
    assert with_zero_points("int8:group32:fp32:offset", 128) == ""  # loses too much beside 0
    assert with_zero_points("int8:group32:fp32:asym(fp16)", 128) == "int8:group32:fp32:asym"
    assert with_zero_points("nf4:group64:fp32:offset", 128) == ""
    assert with_zero_points("int4:group64:fp32", 128) == ""


FINE_FORMATS = ["nf4:group64:fp32", "nf4:group16:e4m3", "nf4:group64:fp32:offset"]


def fine_weight(fmt: str, n: int, k: int) -> tuple[Operand, torch.Tensor]:
    codes, *parts = P.choose_quantize.reference(torch.randn(n, k).to(DEVICE), fmt, None)
    stored = operand(codes, P.from_list(parts, parse(fmt)), fmt, k)
    return stored, P.dequantize.reference(stored, torch.float32).double()


@pytest.mark.parametrize("fmt", FINE_FORMATS)
def test_two_bfloat16_are_nearly_the_value(fmt: str) -> None:
    stored, values = fine_weight(fmt, 8, 256)
    upper, lower = dequantize(stored, torch.bfloat16), decoded(stored, torch.bfloat16, "rest")
    assert torch.equal(upper, values.to(torch.bfloat16))
    assert torch.equal(lower, (values - upper.double()).to(torch.bfloat16))
    lost = (values - upper.double() - lower.double()).abs()
    assert bool((lost <= 2.0**-17 * values.abs()).all()) and bool(lost.any())


@pytest.mark.some(5)
@pytest.mark.parametrize("fmt", FINE_FORMATS)
def test_products(fmt: str) -> None:
    """As many units as the contract allows, before the result is rounded."""
    stored, values = fine_weight(fmt, 5, LEAST_K)
    x, row, bias = torch.randn(70, LEAST_K), torch.rand(70) + 0.5, torch.randn(5)
    x, row, bias = x.to(DEVICE).bfloat16(), row.to(DEVICE), bias.to(DEVICE)
    for ends in (NO_ENDS, Ends(row, bias)):
        y = halves(x, stored, ends, torch.bfloat16).double()
        left = x.double() * (1 if ends.x_row is None else row[:, None])
        added = 0 if ends.bias is None else bias.double()
        exact = left @ values.T + added
        size = left.abs() @ values.abs().T + abs(added)
        bound = LEAST_K / 8 * 2.0**-24 * size
        assert bool(((y - exact).abs() <= bound + 2.0**-8 * (exact.abs() + bound)).all())


def test_what_it_takes() -> None:
    long, short = torch.zeros(2, LEAST_K), torch.zeros(2, LEAST_K - 1)
    assert takes_halves(long.bfloat16(), torch.bfloat16)
    assert not takes_halves(short.bfloat16(), torch.bfloat16)
    assert not takes_halves(long.half(), torch.float16)
    assert not takes_halves(long.bfloat16(), torch.float32)


BLOCKS_OF_FLOATS = [
    "int4:group32:fp32",
    "nf4:group64:fp32",
    "uint4:group32:fp16:offset",
    "int4:group8:fp32",
]


@pytest.mark.slow
@pytest.mark.parametrize("fmt", [*BLOCKS_OF_FLOATS, "int4:channel0:fp32"])
def test_values_rounded_for_many_rows(fmt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the weight of a bfloat16 layer, unless exact values cost nothing, or are asked for."""
    k, spelling = 128, str(parse(fmt))
    codes, *rest = P.choose_quantize.reference(torch.randn(9, k), spelling, None)
    parts = P.from_list([part.to(DEVICE) for part in rest], parse(fmt))
    weight = operand(codes.to(DEVICE), parts, spelling, k)
    exact = P.dequantize.reference(weight, torch.float32).cpu()
    x = torch.randn(least_rows(spelling, k) or 40, k).bfloat16()
    with use("cuda"):
        for how in ("", "exact"):
            monkeypatch.setenv("BLOCKSCALE_WEIGHT_PRODUCTS", how)
            y = linear(x.to(DEVICE), weight, None, UNQUANTIZED).cpu().double()
            off = [(y - x.double() @ w.double().T).norm() for w in (exact, exact.bfloat16())]
            assert (off[1] < off[0]) == (not how and fmt in BLOCKS_OF_FLOATS), how
            assert off[0] < 2.0**-7 * y.norm()


def test_from_how_many_rows() -> None:
    for fmt, rows in (
        ("int4:group32:fp32", 512),
        ("int4:group128:fp32", 1024),
        ("nf4:channel0:fp32", 512),
        ("uint4:group32:fp16:offset", 256),
        ("nf4:group64:e4m3", 1),
        ("int4:channel0:fp32", None),
        ("mxfp4", None),
        ("int16:group32:fp32", None),
    ):
        assert least_rows(str(parse(fmt)), 4096) == rows, fmt
