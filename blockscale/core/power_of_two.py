"""Powers of two as scales: rounding a scale to one, and a format's sibling that has such a scale.

Under a power-of-two scale requantization is a shift of bits (docs/power_of_two.md).
"""

from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from blockscale.core.arithmetic.bits import FLT_MIN
from blockscale.core.format import Format
from blockscale.core.scale import Levels, PowerOfTwo

NEAREST = PowerOfTwo("nearest", byte=False)
LARGEST = 2.0**127
_SQRT_HALF = 0.7071067811865476  # the float64 just above the square root of 1/2
_BOUNDS = {  # the powers of two that a scale of this dtype can be (docs/numerics.md, 1.3)
    torch.float32: (FLT_MIN, LARGEST),
    torch.float64: (FLT_MIN, LARGEST),
    torch.bfloat16: (FLT_MIN, LARGEST),
    torch.float16: (2.0**-24, 2.0**15),
}

Value = TypeVar("Value", float, "np.floating[Any]", Tensor)


def round_to_power_of_2(scale: Value) -> Value:
    """A scale, or a tensor [...] of them -> the nearest power of two, in the same type and dtype.

    Nearest is meant in the logarithm: the next power up wherever the mantissa, in [1, 2), is above
    the square root of 2. No ties: that root is no binary number. It is the rule `nearest` of
    docs/numerics.md, 3.4, so these are the scales of the formats `...:pow2/nearest`.

    scale: a Python float or int, a NumPy floating scalar, or a tensor of float32, float64, bfloat16
    or float16; the decision is exact in each.

    The result is a scale that can be stored, as one `pow2` can: 2^-126 ... 2^127 (float16: 2^-24
    ... 2^15). Smaller values, subnormals and 0 give the smallest, larger ones and infinity the
    largest; NaN stays NaN. The result has no gradient.

    Raises ValueError for a negative scale (-0.0 counts as 0), TypeError for other types and dtypes.
    """
    if isinstance(scale, Tensor):
        return _round_tensor(scale)
    if isinstance(scale, bool) or not isinstance(scale, int | float | np.float32 | np.float16):
        raise TypeError(
            f"expected a float or a tensor of floats, found a {type(scale).__name__}: "
            f"float(...) or torch.as_tensor(...) makes one"
        )
    if isinstance(scale, int):
        scale = max(-1, min(scale, 2**127))  # of any size, which float() does not take
    kind = type(scale) if isinstance(scale, np.floating) else float
    dtype = torch.float16 if kind is np.float16 else torch.float64
    return kind(_round_tensor(torch.tensor(float(scale), dtype=dtype)).item())


def _round_tensor(scale: Tensor) -> Tensor:
    if scale.dtype not in _BOUNDS:
        dtype = str(scale.dtype).removeprefix("torch.")
        raise TypeError(
            f"expected float32, float64, bfloat16 or float16, found {dtype}: convert it first, "
            f"e.g. scale.float()"
        )
    scale = scale.detach()
    if bool((scale < 0).any()):
        raise ValueError(
            f"a scale is positive, but the smallest is {float(scale.nan_to_num().min())}: "
            f"round its magnitude, scale.abs()"
        )
    return nearest_power(scale)


def nearest_power(scale: Tensor) -> Tensor:
    """`round_to_power_of_2` of a tensor [...] that is known not to be negative."""
    low, high = _BOUNDS[scale.dtype]
    if scale.dtype == torch.float64:
        within = scale.clamp(low, high)  # NaN stays
        fraction, exponent = torch.frexp(within)  # fraction in [1/2, 1)
        rounded = torch.ldexp(torch.ones_like(within), exponent - 1 + (fraction >= _SQRT_HALF))
    else:
        within = scale.to(torch.float32)
        finite = within.nan_to_num(0.0, LARGEST, 0.0)
        rounded = NEAREST.store(finite, Levels(1.0, 0), 0).to(torch.float32)
    rounded = rounded.clamp(low, high).to(scale.dtype)
    return torch.where(scale.isnan(), scale, rounded)


def with_power_of_2_scale(fmt: Format) -> Format:
    """The same format under a float32 scale that is a power of two, `pow2/nearest`.

    A zero point is chosen from the rounded scale, as from any. `recip` goes, since division by a
    power of two is exact; `half`, a rule about float scales, becomes `full`, which has its codes
    (-128 ... 127). A two-level scale becomes one power of two a block. Formats that have a
    power-of-two scale, `pow2` or `e8m0`, stay as they are.
    """
    if isinstance(fmt.scale, PowerOfTwo):
        return fmt
    span = "full" if fmt.span == "half" else fmt.span
    return replace(fmt, scale=NEAREST, recip=False, span=span)
