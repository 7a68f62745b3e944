# SPDX-License-Identifier: BSD-3-Clause
"""Exact rationals for what integer ops mean, one number at a time."""

import math
from fractions import Fraction

import torch
from torch import Tensor

HALF = Fraction(1, 2)


def rounded(x: Fraction, rounding: str) -> int:
    """What each rounding says (docs/numerics.md, section 2), in rationals."""
    floor, rest = math.floor(x), x - math.floor(x)
    return {
        "nearest_even": round(x),  # Python's, of a Fraction: half to even
        "nearest_away": math.floor(x + HALF) if x >= 0 else math.ceil(x - HALF),
        "half_up": math.floor(x + HALF),
        "toward_zero": math.trunc(x),
        "down": floor,
        "up": floor + (rest > 0),
    }[rounding]


def ended(acc: int, shift: int, zero: int, low: int, high: int, rounding: str) -> int:
    """clamp(round(acc * 2^-shift) + zero, low, high)."""
    return max(low, min(high, rounded(acc * Fraction(2) ** -shift, rounding) + zero))


def whole(low: int, high: int, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
    """Random integers from low to high."""
    return torch.randint(low, high + 1, shape, dtype=torch.int64).to(dtype)


INT8, UINT8 = "int8:tensor:pow2/nearest", "uint8:tensor:pow2/nearest:asym"
INT16 = "int16:tensor:pow2/ceil"
LIMITS = {INT8: (-127, 127), UINT8: (0, 255), INT16: (-32767, 32767)}


def shifts(*values: int) -> Tensor:
    """As ops take them."""
    return torch.tensor(values, dtype=torch.int32)
