# SPDX-License-Identifier: BSD-3-Clause
"""x of unsigned codes and of codes with zero points: exact sums, against numpy's int64."""

import itertools

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.core import reference
from blockscale.core.operand import Quantizer
from blockscale.core.parse import parse
from blockscale.kernels.cpu.linear import as_integers, row_block
from blockscale.kernels.cpu.native import linear_weight
from blockscale.ops.linear import linear
from tests.support.cpu_linear import NOTHING, check, packed, run, stored
from tests.support.cpu_linear_integers import NEVER_WRONG, exact, near, weight_of

WEIGHTS = (
    "int8:channel0:fp32",
    "uint8:channel0:fp32:asym",
    "int4:group32:pow2/ceil",
    "uint4:group32:pow2/ceil:asym",
    "uint3:channel0:fp32",
)
INPUTS = ("uint8", "int8", "uint4", "int3", "uint7", "int2")


def limits(fmt: str) -> tuple[int, int]:
    low, high = parse(fmt).element.limits(True)
    return int(low), int(high)


def a_weight(fmt: str, n: int, k: int) -> tuple[tuple, Tensor]:
    """A weight of random codes, and its values [n, k] less their scales, which are powers of 2."""
    form, (low, high) = parse(fmt), limits(fmt)
    size = form.block.scale_shape((n, k))
    codes = torch.randint(low, high + 1, (n, k)).to(form.element.code_dtype)
    zero = torch.randint(low, high + 1, size).to(torch.int32) if form.asym else None
    codes[1] = 0 if zero is None else int(zero[1, 0])  # zeros, in the first block at least
    scale = torch.pow(2.0, torch.randint(-2, 3, (n, 1)).float()).expand(size).contiguous()
    offset = 0 if zero is None else form.block.expand(zero, (n, k)).long()
    return weight_of(codes, fmt, scale, zero), (codes.long() - offset) * (scale[:, :1] * 4).long()


@pytest.mark.pairs
@pytest.mark.parametrize("bits", INPUTS)
@pytest.mark.parametrize("weight_fmt", WEIGHTS)
def test_given_zero_points(isa: str, weight_fmt: str, bits: str) -> None:
    """At both ends of the codes, within and beyond; sizes that are multiples of nothing."""
    del isa
    fmt = f"{bits}:tensor:fp32:asym"
    low, high = limits(fmt)
    weight, values = a_weight(weight_fmt, 35, 100)
    for m, zero in itertools.product(
        (1, 3, 13), (low, high, (low + high) // 2, high + 45, low - 9)
    ):
        codes = torch.randint(low, high + 1, (m, 100))
        scale = torch.tensor([[0.75]])
        x = (codes - zero).float() * scale
        given = (scale, torch.tensor([[zero]], dtype=torch.int32), None)
        bias = torch.randn(35)
        y = run(x, weight, weight_fmt, fmt, given=given, bias=bias)
        expected = exact(codes - zero, values) * 0.75 / 4
        size = expected.abs() + bias.abs().double()
        assert ((y.double() - expected - bias.double()).abs() <= NEVER_WRONG * size).all()


@pytest.mark.some(4)
@pytest.mark.parametrize("weight_fmt", WEIGHTS)
@pytest.mark.parametrize(
    "fmt",
    [
        *("uint8:tensor:fp32:asym", "uint8:token:fp32:asym", "int8:token:bf16:asym"),
        *("uint8:tensor:fp32", "uint8:token:e8m0/ceil", "uint4:token:fp32:asym"),
    ],
)
def test_chosen_zero_points(isa: str, weight_fmt: str, fmt: str) -> None:
    del isa
    form = parse(fmt)
    weight, values = a_weight(weight_fmt, 33, 70)
    x = torch.randn(14, 70) + torch.linspace(-3, 3, 14)[:, None]
    parts = reference.choose_qparams(x, form)
    codes = reference.quantize(x, parts, form).long()
    zero = torch.zeros(1, 1) if parts.zero_point is None else parts.zero_point
    step = form.scale.step(parts.scale, form.fraction_bits) if "e8m0" in fmt else parts.scale
    assert parts.zero_point is None or step.numel() == 1 or len(set(zero.flatten().tolist())) > 3
    y = run(x, weight, weight_fmt, fmt)
    units, found = step.double() / 4, codes - zero.long()
    sizes = exact(found.abs(), values.abs()) * units  # sums of blocks are rounded on their way
    if "group" not in weight_fmt:
        near(y, exact(found, values) * units)
    assert ((y.double() - exact(found, values) * units).abs() <= NEVER_WRONG * sizes).all()


@pytest.mark.pairs
@pytest.mark.parametrize("m", [1, 2, 6, 19])
@pytest.mark.parametrize(
    "fmt", ["uint8:group32:fp32:asym", "uint8:group16:pow2/ceil", "uint4:group48:fp32:asym"]
)
@pytest.mark.parametrize(
    "weight_fmt", ["int8:channel0:fp32", "uint8:group48:fp32:asym", "int4:group16:fp32"]
)
def test_blocks_of_x(isa: str, weight_fmt: str, fmt: str, m: int) -> None:
    """Last blocks are partial: 100 = 3 · 32 + 4."""
    del isa
    weight = stored(torch.randn(37, 100), weight_fmt)
    check(torch.randn(m, 100) + 1, weight, weight_fmt, fmt, bias=torch.randn(37))


@pytest.mark.pairs
@pytest.mark.parametrize("k", [64, 32768, 33025, 65536, 70000])
@pytest.mark.parametrize("weight_fmt", ["uint8:channel0:fp32:asym", "int8:channel0:fp32:full"])
@pytest.mark.parametrize("zero", [0, 255, 300])
def test_the_largest_sums(isa: str, k: int, weight_fmt: str, zero: int) -> None:
    """Every product as large as can be: 255 · 255 and beyond."""
    del isa
    low, high = limits(weight_fmt)
    w = torch.full((3, k), high, dtype=parse(weight_fmt).element.code_dtype)
    w[1], w[2, ::2] = low, low
    z = torch.tensor([[low], [high], [low]], dtype=torch.int32) if "asym" in weight_fmt else None
    codes = torch.full((2, k), 0 if zero else 255)
    codes[1, ::3] = 255
    given = (torch.ones(1, 1), torch.tensor([[zero]], dtype=torch.int32), None)
    weight = weight_of(w, weight_fmt, torch.ones(3, 1), z)
    y = run((codes - zero).float(), weight, weight_fmt, "uint8:tensor:fp32:asym", given=given)
    values = w.long() - (0 if z is None else z.long())
    expected = exact(codes - zero, values)
    parts = exact((codes - zero).abs(), values.abs())  # sums of several blocks round in between
    assert ((y.double() - expected).abs() <= NEVER_WRONG * parts).all()


def test_zero_points_too_far_for_int32() -> None:
    """Of x and of the weight: float arithmetic takes over, and nothing wraps."""
    fmt = "uint8:tensor:fp32:asym"
    weight = stored(torch.randn(5, 64), "int8:channel0:fp32")
    ready = linear_weight(packed(weight, "int8:channel0:fp32", 64))
    x, y = torch.randn(3, 64), torch.empty(3, 5)
    for zero, expected in ((0, True), (700, True), (-(2**21), False), (2**31 - 1, False)):
        given = (torch.ones(1, 1), torch.tensor([[zero]], dtype=torch.int32), None)
        assert (
            as_integers(ready, x, row_block(fmt, 2) or 0, Quantizer(*given, fmt), None, y)
            == expected
        )
    codes, scale, zero_point, *rest = stored(torch.randn(5, 64), "uint8:channel0:fp32:asym")
    far = torch.tensor([[2**20], [0], [-(2**22)], [2**23], [9]], dtype=torch.int32)
    for far_off in (zero_point, far):
        weight = (codes, scale, far_off, *rest)
        check(x, weight, "uint8:channel0:fp32:asym", "int8:token:fp32")
        check(x, weight, "uint8:channel0:fp32:asym", fmt)


@pytest.mark.parametrize(
    "fmt", ["uint8:tensor:fp32:asym", "uint8:token:fp32:asym", "uint8:token:fp32"]
)
def test_numbers_that_are_none(isa: str, fmt: str) -> None:
    """Infinities saturate, NaN is 0: as the reference says."""
    del isa
    weight = packed(stored(torch.randn(40, 64), "int8:channel0:fp32"), "int8:channel0:fp32", 64)
    for odd in (torch.inf, -torch.inf, torch.nan, 0.0):
        x = torch.randn(5, 64) * (odd != 0.0)
        x[1, 7] = x[3] = odd
        given = Quantizer(*NOTHING, fmt)
        with bs.use("reference"):
            expected = linear(x, weight, None, given)
        with bs.use("cpu"):
            y = linear(x, weight, None, given)
        torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_a_scale_that_is_none() -> None:
    """A NaN scale of x makes everything NaN, an infinite one too."""
    fmt, weight_fmt = "uint8:tensor:fp32:asym", "int8:channel0:fp32"
    weight = stored(torch.randn(7, 32), weight_fmt)
    for scale in (torch.nan, torch.inf, 0.0, -0.5, 1e-30):
        given = (torch.tensor([[scale]]), torch.tensor([[100]], dtype=torch.int32), None)
        check(torch.randn(4, 32), weight, weight_fmt, fmt, given=given)


@pytest.mark.pairs
@pytest.mark.parametrize("weight_fmt", WEIGHTS)
@pytest.mark.parametrize("block", ["tensor", "token", "group32"])
def test_chosen_zero_points_are_integers(isa: str, weight_fmt: str, block: str) -> None:
    """No float path, for any block, dtype and sign of x; weights with zero points too."""
    del isa
    weight, _ = a_weight(weight_fmt, 35, 100)
    ready = linear_weight(packed(weight, weight_fmt, 100))
    for bits, dtype in itertools.product(
        ("uint8", "int8", "uint4"), (torch.float32, torch.bfloat16)
    ):
        by = Quantizer(*NOTHING, f"{bits}:{block}:fp32:asym")
        x, y = torch.randn(3, 100).to(dtype), torch.empty(3, 35, dtype=dtype)
        assert as_integers(ready, x, row_block(by.fmt, 2) or 0, by, None, y)
