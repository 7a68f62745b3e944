"""Inputs at which rounding, scales and random numbers turn over."""

import math
import struct

import pytest
import torch
from torch import Tensor

from blockscale.core.operand import Operand
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.ops import primitives as P
from tests.kernels.cpu.equal import wrong
from tests.kernels.cpu.test_primitives import ELEMENTS, ROUNDINGS, RULES

FLT_MAX = torch.finfo(torch.float32).max
ODD = [0.0, -0.0, 2.0**-149, -(2.0**-149), 2.0**-126, FLT_MAX, -FLT_MAX]
ODD += [math.inf, -math.inf, math.nan, 3e38, -1e-40, 2.0**22, 2.0**23 + 1, 2.0**24, -(2.0**31)]
WIDE = [f"{sign}int{b}" for sign in ("", "u") for b in range(7, 17)]
SMALL = [element for element in ELEMENTS if element not in WIDE]


def edges(element: str) -> Tensor:
    """Values of the element, midpoints between them, one float32 beside each, and odd ones."""
    of = parse(f"{element}:tensor:fp32").element
    patterns = torch.arange(2**of.bits, dtype=torch.int32)
    patterns = patterns.to(torch.uint8) if of.bits <= 8 else patterns
    values = of.decode(of.from_bits(patterns)).double()
    values = values[values.isfinite()].unique()
    top = values[-1]
    middle = (values[1:] + values[:-1]) / 2
    beyond = torch.tensor([top * 1.03125, top + 0.5, top + 1, top * 1.5, top * 2]).double()
    x = torch.cat([values, middle, beyond, -beyond]).float()
    up = x.nextafter(torch.tensor(math.inf))
    down = x.nextafter(torch.tensor(-math.inf))
    return torch.cat([x, up, down, torch.tensor(ODD)])


def check_rounding(element: str, scale: float, rounding: str) -> None:
    fmt = f"{element}:tensor:fp32" + rounding
    given = QParams(torch.full((1,), scale))
    x = edges(element) * scale
    assert wrong(x, fmt, torch.tensor([5, 0]), qparams=given) == []


@pytest.mark.parametrize("element", SMALL)
def test_every_midpoint(element: str) -> None:
    for rounding in ("", *ROUNDINGS):
        if not (rounding and element == "binary"):
            check_rounding(element, 1.0, rounding and f":{rounding}")


@pytest.mark.parametrize("element", ["int8", "e4m3", "e2m1", "ternary", "log8", "uint16"])
@pytest.mark.parametrize("scale", [2.0**-126, 3 * 2.0**-140, 2.0**100])
def test_midpoints_of_very_small_and_large_steps(element: str, scale: float) -> None:
    check_rounding(element, scale, "")


@pytest.mark.slow
@pytest.mark.parametrize("rounding", ["", *ROUNDINGS])
@pytest.mark.parametrize("element", ["int8", "uint8", "int16", "uint16", "int12"])
def test_every_midpoint_of_wide_integers(element: str, rounding: str) -> None:
    check_rounding(element, 1.0, rounding and f":{rounding}")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "fmt", ["e4m3:token:fp32", "int8:channel0:fp16:asym", "e2m1:group16:e4m3", "int4:tensor:fp32"]
)
def test_every_16_bit_input(fmt: str, dtype: torch.dtype) -> None:
    x = torch.arange(2**16, dtype=torch.int32).to(torch.uint16).view(dtype).reshape(64, 1024)
    assert wrong(x, fmt) == []
    assert wrong(x.nan_to_num(0, 0, 0), fmt) == []


def around_powers() -> Tensor:
    """One number a row: mantissas at which rules turn over, in every binade of float32."""
    special = [0, 1, 2, 0x3504F2, 0x3504F3, 0x3504F4, 0x400000, 0x600000, 0x7FFFFE, 0x7FFFFF]
    for y in range(8):  # thresholds of `even`, `rceil` and `tosa`
        for at in (2**23 - 2 ** (22 - y), 2**23 - 2 ** (23 - y), 3 * 2**21):
            special += [at - 1, at, at + 1]
    fractions = torch.tensor([f for f in special if 0 <= f < 2**23], dtype=torch.int32).unique()
    exponents = torch.cat([torch.arange(0, 24), torch.arange(24, 232, 23), torch.arange(232, 255)])
    bits = (exponents[:, None].int() << 23 | fractions[None]).flatten()
    subnormal = torch.tensor([1 << k for k in range(23)], dtype=torch.int32)
    return torch.cat([bits, subnormal, subnormal - 1]).view(torch.float32)[:, None]


@pytest.mark.parametrize("kind", ["e8m0", "pow2"])
@pytest.mark.parametrize("element", ["int8", "uint4", "e2m1", "e4m3", "int16", "e7m0", "log8"])
def test_rules_turn_over_in_every_binade(element: str, kind: str) -> None:
    x = around_powers()
    for rule in RULES:
        assert wrong(x, f"{element}:token:{kind}/{rule}") == [], rule


@pytest.mark.parametrize("scale", ["fp32", "fp16", "bf16", "e4m3", "(uint8:tensor:fp32)"])
def test_float_scales_in_every_binade(scale: str) -> None:
    for element in ("int8", "e2m1", "int5", "ternary", "binary"):
        assert wrong(around_powers(), f"{element}:token:{scale}") == [], element


@pytest.mark.parametrize("byte", [0, 1, 2, 126, 127, 128, 252, 253, 254, 255])
def test_given_bytes(byte: int) -> None:
    """Also integers whose step is subnormal, so that its inverse overflows."""
    for fmt in ("int16", "int8", "uint16", "int2", "e4m3", "log8", "binary"):
        spelled = f"{fmt}:tensor:e8m0/floor"
        x = torch.tensor([*ODD, 1.0, -1.5, 2.5]) * torch.tensor([[1.0], [2.0**-130], [2e-6]])
        given = QParams(torch.tensor([[byte]], dtype=torch.uint8))
        assert wrong(x, spelled, qparams=given) == [], fmt


GIVEN = [1.0, 3.0, -2.0, 0.0, -0.0, 2.0**-149, 2.0**-127, 1.5e-39, FLT_MAX, math.inf, -math.inf]
UNDER = ("int8", "int8:recip", "uint12:asym", "uint3:asym:stochastic", "e4m3", "e4m3:recip:down")
UNDER += ("e2m1", "e2m1:stochastic", "binary", "binary:recip")


@pytest.mark.parametrize("scale", [*GIVEN, math.nan])
def test_given_float_scales(scale: float) -> None:
    x = torch.cat([torch.randn(50), torch.tensor(ODD)])
    for under in UNDER:
        element, _, option = under.partition(":")
        zero = torch.tensor([3], dtype=torch.int32) if "asym" in option else None
        fmt = ":".join([element, "tensor", "fp32", *filter(None, [option])])
        assert wrong(x, fmt, qparams=QParams(torch.tensor([scale]), None, zero)) == [], fmt


@pytest.mark.parametrize("element", ["int8", "uint8", "int16", "uint16", "uint3", "uint1"])
def test_given_zero_points(element: str) -> None:
    low, high = parse(f"{element}:tensor:fp32:asym").element.limits(True)
    for rounding in ("", *(f":{r}" for r in ROUNDINGS)):
        for zero in (low, low + 1, 0, high - 1, high):
            x = edges("uint3") - torch.tensor([[zero], [low], [high], [0]])
            given = QParams(torch.ones(1, 1), None, torch.tensor([[zero]], dtype=torch.int32))
            assert wrong(x, f"{element}:tensor:fp32:asym{rounding}", qparams=given) == [], zero


SEEDS = [(0, 0), (-1, 1), (2**32, 2), (2**63 - 1, 3), (-(2**63), 2**32 - 5), (7, 2**34 - 70)]


@pytest.mark.parametrize("seed", [*SEEDS, (7, 2**34 - 1), (3, 2**62)], ids=str)
def test_random_numbers(seed: tuple[int, int]) -> None:
    """Around 2^34 elements the counter's second word begins; chunks start anywhere in a block."""
    x = torch.randn(3, 4099)
    for fmt in ("int8:token:fp32:stochastic", "e2m1:group7:e8m0/floor:stochastic"):
        assert wrong(x, fmt, torch.tensor(seed)) == []


@pytest.mark.parametrize(
    "seed", [torch.tensor([7, 99, 3, 5])[::2], torch.tensor(5).expand(2), torch.tensor([9])]
)
def test_seeds_in_any_memory(seed: Tensor) -> None:
    assert wrong(torch.randn(4, 40), "int8:token:fp32:stochastic", seed) == []


NAN = struct.unpack("f", b"\1\0\x80\x7f")[0]  # signalling, the least payload


@pytest.mark.parametrize("odd", [math.inf, -math.inf, math.nan, -math.nan, NAN, -NAN], ids=str)
def test_one_number_that_is_not_finite(odd: float) -> None:
    """At each end of a range it must be seen by itself."""
    for block in ("tensor", "group16", "group32", "channel1", "tile2x7"):
        for under in ("int8:{}:fp32:asym", "int4:{}:fp32:full", "uint4:{}:fp32", "int8:{}:fp32"):
            x = torch.randn(3, 300)
            x[1, 161] = odd
            assert wrong(x, under.format(block)) == [], (under, block)
        for under in ("int8:{}:e8m0/floor:asym", "ternary:{}:fp32", "binary:{}:e4m3"):
            assert wrong(x, under.format(block)) == [], (under, block)


SHAPES = [(e, m) for e in range(1, 8) for m in range(7) if 2 <= e + m < 8]


@pytest.mark.parametrize(("exponent", "mantissa"), SHAPES)
def test_every_code_of_every_minifloat(isa: str, exponent: int, mantissa: int) -> None:
    """A converter of float16 must not be asked for exponents that mean something else there."""
    del isa
    fmt = f"e{exponent}m{mantissa}:token:fp32"
    codes = torch.arange(2 ** (1 + exponent + mantissa), dtype=torch.uint8).repeat(2, 3)
    packed, scale = P.pack.reference(codes, fmt), torch.tensor([[1.0], [0.3]])
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        args = (Operand(packed, scale, None, None, fmt, codes.shape[1]), dtype)
        found, expected = P.dequantize(*args), P.dequantize.reference(*args)
        assert torch.equal(found.isnan(), expected.isnan())
        assert torch.equal(found.nan_to_num(7.0), expected.nan_to_num(7.0))
