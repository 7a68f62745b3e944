# SPDX-License-Identifier: BSD-3-Clause
"""OCP MX 1.0, written from the specification in exact rationals, with ml_dtypes' elements.

Section 6.3: the shared scale X is the largest power of two at most max |v|, over the largest power
of two of the element type; then P = quantize(v / X), nearest even, saturating (5.3, 6.3).
"""

import math
from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch

import blockscale as bs
from tests.support.profile_inputs import KINDS

# table 1 of the specification: emax of each element type
EMAX = {"mxfp8": 8, "mxfp8_e5m2": 15, "mxfp6": 4, "mxfp6_e2m3": 2, "mxfp4": 2, "mxint8": 0}
ELEMENTS = {
    "mxfp8": ml_dtypes.float8_e4m3fn,
    "mxfp8_e5m2": ml_dtypes.float8_e5m2,
    "mxfp6": ml_dtypes.float6_e3m2fn,
    "mxfp6_e2m3": ml_dtypes.float6_e2m3fn,
    "mxfp4": ml_dtypes.float4_e2m1fn,
}


@dataclass(frozen=True)
class Grid:
    """The magnitudes of an element type, ascending; a place in it is a magnitude code."""

    magnitudes: tuple[Fraction, ...]

    def nearest(self, v: Fraction) -> int:
        """Of two as near, the one whose last bit is 0; beyond the largest, the largest."""
        above = bisect_left(self.magnitudes, v)
        if above == len(self.magnitudes):
            return above - 1
        if above == 0:
            return 0
        twice = 2 * v - self.magnitudes[above - 1] - self.magnitudes[above]
        return above if twice > 0 or (twice == 0 and above % 2 == 0) else above - 1


def grid(name: str) -> Grid:
    if name == "mxint8":  # 5.3.4: two's complement with an implicit scale of 2^-6
        return Grid(tuple(Fraction(code, 64) for code in range(128)))
    dtype = ELEMENTS[name]
    half = 1 << (ml_dtypes.finfo(dtype).bits - 1)
    values = np.arange(half, dtype=np.uint8).view(dtype).astype(np.float32).tolist()
    return Grid(tuple(Fraction(v) for v in values if math.isfinite(v)))


def floor_log2(v: Fraction) -> int:
    n = v.numerator.bit_length() - v.denominator.bit_length()
    return n if Fraction(2) ** n <= v else n - 1


def block(name: str, values: list[float], cache: Grid) -> tuple[int, list[int]]:
    """One block -> its scale byte and codes: sign bit and magnitude, or the integer."""
    largest = max(abs(Fraction(v)) for v in values)
    byte = 0 if largest == 0 else min(max(floor_log2(largest) - EMAX[name], -127), 127) + 127
    scale = Fraction(2) ** (byte - 127)
    codes = []
    for v in values:
        code, minus = cache.nearest(abs(Fraction(v)) / scale), math.copysign(1, v) < 0
        if name == "mxint8":
            codes.append(-code if minus else code)
        else:
            bits = 8 if name.startswith("mxfp8") else int(name[4])
            codes.append(code + (minus << (bits - 1)))
    return byte, codes


@pytest.mark.some(4)
@pytest.mark.pairs
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", EMAX)
def test_the_specification(name: str, kind: str, dtype: torch.dtype) -> None:
    x = KINDS[kind]().to(dtype)[:16, :64]
    table = grid(name)
    q = bs.quantize(x, bs.profile(f"ocp.{name}"))
    expected = [block(name, b, table) for b in x.float().reshape(-1, 32).tolist()]
    assert q.scale.flatten().tolist() == [byte for byte, _ in expected]
    assert q.codes.reshape(-1, 32).tolist() == [codes for _, codes in expected]


@pytest.mark.parametrize("name", EMAX)
def test_the_ends_of_the_scale(name: str) -> None:
    """Subnormal numbers, blocks whose scale saturates, and one number below a power of two."""
    tops = [2.0**-149, 2.0**-130, 2.0**-127, 2.0**-126, 1.0, 2.0**127, float(np.float32(3.4e38))]
    tops += [float(np.nextafter(np.float32(t), np.float32(0))) for t in tops[1:]]
    table = grid(name)
    x = torch.tensor(tops)[:, None] * torch.linspace(-1, 1, 32)
    q = bs.quantize(x, bs.profile(f"ocp.{name}"))
    expected = [block(name, b, table) for b in x.tolist()]
    assert q.scale.flatten().tolist() == [byte for byte, _ in expected]
    assert q.codes.tolist() == [codes for _, codes in expected]


def test_its_formats_are_the_named_ones() -> None:
    for name in EMAX:
        assert bs.profile(f"ocp.{name}", "1.0").format == bs.parse(name)
