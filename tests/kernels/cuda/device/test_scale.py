# SPDX-License-Identifier: BSD-3-Clause
"""Scales are chosen and stored as the reference does."""

import pytest
import torch

from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from tests.support.cuda_equal import wrong

# numpy, in which the interpreter computes, tells of infinities and NaN
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.some(5)
@pytest.mark.parametrize("kind", ["e8m0/ceil", "e8m0/nearest", "pow2/tosa"])
def test_scales_of_subnormal_numbers(kind: str) -> None:
    x = torch.tensor([1, 2, 3, 5, 255, 257, 2**22, 2**23 - 1], dtype=torch.int32)
    x = torch.cat([x, torch.arange(2**23, 2**28, 2**23 + 2**21, dtype=torch.int32)])
    for element in ("int8", "log4"):
        assert wrong(x.view(torch.float32)[:, None], f"{element}:token:{kind}") == [], element


@pytest.mark.slow
@pytest.mark.parametrize("outer", [-3.0, 0.0, -0.0, 2.0**-149, -(2.0**-149), 3e38, torch.inf])
@pytest.mark.parametrize(
    "fmt", ["nf4:group16:e4m3", "e2m1:group16:e4m3", "int8:group16:e5m2:recip"]
)
def test_given_outer_scales(fmt: str, outer: float) -> None:
    """Steps keep their sign, and are 0 where either scale is: 1.3 and 4 of the contract."""
    x = torch.cat([torch.randn(4, 64), torch.tensor([[0.0, -0.0, 1e-38, -3e38] * 16])])
    codes = torch.tensor([0, 0x80, 0x08, 0x88, 0x38, 0xB8, 1, 0x7E, 0xFE, 0x7F] * 2)
    scale = codes.to(torch.uint8).reshape(5, 4)
    assert wrong(x, fmt, given=QParams(scale, torch.tensor([[outer]]))) == []


def neighbours(values: torch.Tensor) -> torch.Tensor:
    """Float32 numbers with those next to them."""
    ends = torch.tensor(torch.inf)
    return torch.cat([values, values.nextafter(ends), values.nextafter(-ends)]).clamp(min=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ue5m3", "ue4m3", "ue4m4", "ue7m1", "ue7m0", "ue1m7", "ue5m3r8"])
def test_every_boundary_between_codes_of_scales(name: str) -> None:
    """Blocks whose largest numbers make quotients that are codes, midway between them, or next to
    that; below the first and above the last; zeros, and numbers that are not finite."""
    element = parse(f"e2m1:group16:{name}").scale.element
    codes = torch.arange(2**element.bits, dtype=torch.uint8)
    values = element.decode(codes)[: element.magnitudes.max_code + 1]
    between = torch.cat([values, (values[1:] + values[:-1]) / 2, values[:2] / 4, values[-2:] * 1.5])
    largest = neighbours(between * 6)
    x = torch.linspace(-1, 1, 16) * torch.cat([largest, torch.zeros(1)])[:, None]
    x[:, 15] = torch.cat([largest, torch.zeros(1)])
    x = torch.cat([x, torch.full((1, 16), torch.nan), torch.full((1, 16), torch.inf)])
    x[-1, 1:] = 1.5
    fmt = f"e2m1:group16:{name}"
    for ordinary in (x[:-2], x):  # programs without numbers that are not finite go another way
        assert wrong(ordinary, fmt) == []


FAR = ("int4:group16:ue2m1:asym", "uint4:group16:ue2m1:asym", "log4:group16:ue2m1")


@pytest.mark.slow
@pytest.mark.parametrize("fmt", [*FAR, "int4:token:ue3m2r0"])
def test_numbers_far_above_the_largest_scale(fmt: str) -> None:
    """Codes saturate, as quotients are too large to be counted in the low bits of a sum."""
    x = torch.randn(4, 64)
    for size in (2.0**5, 2.0**30, 2.0**80):
        assert wrong(x * size, fmt) == [], size


@pytest.mark.some(3)
@pytest.mark.parametrize(
    "fmt", ["e2m1:group16:ue5m3", "int8:group16:ue5m3:recip", "nf4:group16:ue4m3r2"]
)
def test_every_given_code_of_a_scale(fmt: str) -> None:
    """Reserved ones mean NaN, and that of 0 a step of 0."""
    x = torch.randn(256, 16) * torch.exp2(torch.arange(256.0) / 8 - 16)[:, None]
    x[5:200:7, 3] = 0
    assert wrong(x, fmt, given=QParams(torch.arange(256, dtype=torch.uint8)[:, None])) == []


OFFSETS = (0.0, -0.0, -2.5, 2.0**-149, 3e38, torch.inf, torch.nan)
SCALES = (1.0, -0.5, 0.0, -0.0, 2.0**-149)


def offsets_are_right(scale: float, offsets: tuple[float, ...]) -> None:
    """One row of hard numbers for each offset."""
    row = torch.tensor([0.0, -0.0, 1.0, -2.5, 7.25, 3e38, -3e38, torch.inf, torch.nan, 1e-40] * 4)
    x = row.repeat(len(offsets), 1)
    scales = torch.full((len(offsets), 1), scale)
    given = QParams(scales, offset=torch.tensor(offsets)[:, None])
    for element in ("int4", "nf4", "e2m1"):
        assert wrong(x, f"{element}:token:fp32:offset", given=given) == [], element


@pytest.mark.some(5)
@pytest.mark.parametrize("scale", SCALES)
def test_given_offsets(scale: float) -> None:
    offsets_are_right(scale, OFFSETS)


@pytest.mark.slow
@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("scale", SCALES)
def test_a_given_offset_alone(scale: float, offset: float) -> None:
    offsets_are_right(scale, (offset,))
