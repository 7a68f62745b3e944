# SPDX-License-Identifier: BSD-3-Clause
"""Scales that are powers of two, and which formats have whole steps, so that integers compute."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from blockscale.core.elements.binary import Binary
from blockscale.core.elements.integer import Integer
from blockscale.core.elements.ternary import Ternary
from blockscale.core.format import Format
from blockscale.core.scale import PowerOfTwo
from blockscale.core.untrusted import kind_of

# Powers of two as scales: rounding a scale to one, and a format's sibling that has such a scale.
#
# Under a power-of-two scale requantization is a shift of bits (docs/power_of_two.md).

NEAREST = PowerOfTwo("nearest", byte=False)
_ROOT = 1.414213562373095  # the float64 just below the square root of 2
_BOUNDS = {  # the powers of two that a scale of this dtype can be (docs/numerics.md, 1.3)
    torch.float32: (2.0**-126, 2.0**127),
    torch.float64: (2.0**-126, 2.0**127),
    torch.bfloat16: (2.0**-126, 2.0**127),
    torch.float16: (2.0**-24, 2.0**15),
}

Value = TypeVar("Value", float, "np.floating[Any]", Tensor)


def round_to_power_of_2(scale: Value) -> Value:
    """A scale, or a tensor [...] of them -> the nearest power of two, in the same type and dtype.

    Nearest is meant in the logarithm: the next power up wherever the mantissa, in [1, 2), is above
    the square root of 2. No ties: that root is no binary number. It is the rule `nearest` of
    docs/numerics.md, 3.4, so these are the scales of the formats `...:pow2/nearest`. A negative
    scale keeps its sign: its magnitude is rounded.

    scale: a Python float or int, a NumPy floating scalar, or a tensor of float32, float64, bfloat16
    or float16; the decision is exact in each.

    The result is a scale that can be stored, as one `pow2` can: of magnitude 2^-126 ... 2^127
    (float16: 2^-24 ... 2^15). Smaller ones and subnormals give the smallest, larger ones and
    infinity the largest; 0.0 and -0.0 give the smallest above 0. NaN stays NaN. The result has no
    gradient. What is done depends on dtypes alone, so it compiles and exports.

    Raises TypeError for other types and dtypes.
    """
    if isinstance(scale, Tensor):
        if scale.dtype not in _BOUNDS:
            dtype = str(scale.dtype).removeprefix("torch.")
            raise TypeError(
                f"expected float32, float64, bfloat16 or float16, found {dtype}: convert it first, "
                f"e.g. scale.float()"
            )
        return nearest_power(scale.detach())
    if isinstance(scale, bool) or not isinstance(scale, int | float | np.float32 | np.float16):
        raise TypeError(
            f"expected a float or a tensor of floats, found {kind_of(scale)}: convert "
            "it with float(...) or torch.as_tensor(...)"
        )
    if isinstance(scale, int):
        scale = max(-(2**127), min(scale, 2**127))  # of any size, which float() does not take
    kind = type(scale) if isinstance(scale, np.floating) else float
    bounds = _BOUNDS[torch.float16 if kind is np.float16 else torch.float64]
    return kind(_nearest_power_of_number(float(scale), *bounds))


def nearest_power(scale: Tensor) -> Tensor:
    """`round_to_power_of_2` of a tensor [...] of a dtype that it takes.

    It looks at no value, and is written in what TorchScript knows, for compat's observers.
    """
    low, high = 2.0**-126, 2.0**127
    if scale.dtype == torch.float16:
        low, high = 2.0**-24, 2.0**15
    within = scale.abs().to(torch.float64).clamp(low, high)  # exact from every dtype; NaN stays
    fraction = torch.frexp(within)[0]  # in [1/2, 1)
    above = within / fraction  # the next power of two, exact: only the fraction goes
    nearest = torch.where(fraction > 0.7071067811865475, above, above / 2)  # half of _ROOT
    nearest = nearest.clamp(max=high)
    return torch.where(scale < 0, -nearest, nearest).to(scale.dtype)  # -0.0 counts as 0


def _nearest_power_of_number(scale: float, low: float, high: float) -> float:
    """`nearest_power` of a Python number by comparisons alone, which torch.compile can follow."""
    if scale != scale:
        return scale
    while low < high:  # 8 times at most: it halves the range of exponents
        middle = 2.0 ** ((math.frexp(low)[1] + math.frexp(high)[1]) // 2 - 1)
        if abs(scale) > middle * _ROOT:
            low = 2 * middle
        else:
            high = middle
    return -low if scale < 0 else low


def with_power_of_2_scale(fmt: Format) -> Format:
    """The same format under a float32 scale that is a power of two, `pow2/nearest`.

    A zero point is chosen from the rounded scale, as from any. `recip` goes, since division by a
    power of two is exact. A two-level scale becomes one power of two a block. Formats that have a
    power-of-two scale, `pow2` or `e8m0`, stay as they are.
    """
    if isinstance(fmt.scale, PowerOfTwo):
        return fmt
    return replace(fmt, scale=NEAREST, recip=False)


# Which formats' values are integers in steps of their blocks, so that sums of products have steps.


_WHOLE = (Integer, Ternary, Binary)  # elements whose codes are their values


def why_no_sums(input_format: Format | None, weight: Format, shape: Sequence[int]) -> str | None:
    """Why sums of products of these formats have no step for each output; None if they have.

    input_format: of the layer's input; shape: of its stored weight, [n, k].
    """
    if input_format is None:
        return "its input has no format, so its sums have no step: set one like 'int8:tensor:fp32'"
    if reason := why_no_integers(input_format):
        return f"its input is {input_format}, {reason}"
    if reason := why_no_weights(weight):
        return f"its weight is {weight}, {reason}"
    several = "the sum of one output would have several steps: use the block"
    if input_format.block.name != "tensor":
        return f"its input is {input_format}, {several} 'tensor'"
    if weight.block.scale_shape(tuple(shape)) not in ((1, 1), (shape[0], 1)):
        return f"its weight is {weight}, {several} 'channel0' or 'tensor'"
    return None


def why_no_weights(fmt: Format) -> str | None:
    """Why values of this format are no integers in parts of their block's step, 2^-grain of it;
    None if they are: integers, and powers of two and sums of them."""
    if fmt.element.grain is None:
        return (
            "whose codes are neither integers nor powers of two: use integers, log2 … log8 "
            "or apot3 … apot8"
        )
    return why_no_integers(fmt) if isinstance(fmt.element, _WHOLE) else None


def why_no_integers(fmt: Format) -> str | None:
    """Why values of this format are no integers in steps of their block; None if they are."""
    if not isinstance(fmt.element, _WHOLE):
        return "whose codes are not integers: use integers"
    if fmt.zero is not None:
        return f"whose zero points of type {fmt.zero} are not integers: use 'asym'"
    if fmt.offset is not None:
        return "whose offsets are not whole steps: use 'asym'"
    return None
