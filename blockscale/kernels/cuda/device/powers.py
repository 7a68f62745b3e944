# SPDX-License-Identifier: BSD-3-Clause
"""Codes that are powers of two, as log4 has them, in blocks that are `ordinary`.

Elements are not divided. With a step s, codes turn over at the least x with fl(x / s) > 2^-bias
and, from the second code on, at 1.5 s times powers of two, or at the float32 next to it that has
such a quotient. So codes count binades above two numbers of each block, its turning points.
"""

import triton
import triton.language as tl

from blockscale.kernels.cuda.device.division import uses_markstein
from blockscale.kernels.cuda.device.numerics import EXPONENT, MAGNITUDE, bits_of, constant, float_of

BINADE: tl.constexpr = tl.constexpr(0x00800000)
SIGN: tl.constexpr = tl.constexpr(-0x80000000)


@triton.constexpr_function
def counts_binades(ordinary, spec):
    """Whether codes are found in this way."""
    element = spec.element
    known = element.family == "minifloat" and element.mbits == 0 and element.nan < 0
    known = known and not spec.offset
    return known and ordinary and uses_markstein(spec) and spec.rounding == "nearest_even"


@triton.jit
def turning_points(step, element: tl.constexpr):
    """Steps, float32 [units] -> what `binades` adds to the bits of magnitudes, int32 [units] twice.

    x / s rounds to 1.5 from 1.5 s - 2^-24 s on, which a float32 x does not meet.
    """
    exact = step.to(tl.float64) * 1.5
    near = exact.to(tl.float32)
    below = bits_of(near) - (near.to(tl.float64) > exact).to(tl.int32)
    rest = exact - float_of(below).to(tl.float64)
    middle = below + (rest > step.to(tl.float64) * 5.9604644775390625e-08).to(tl.int32)
    first = (1 + element.bias) * BINADE - 1 - bits_of(step)
    second = (1 + element.bias) * BINADE - middle
    return first, second


@triton.jit
def binades(x, first, second, element: tl.constexpr):
    """Float32 [...] -> codes of magnitudes times 2^23, other bits below, int32 [...].

    first, second: turning points of each element's block
    """
    size = bits_of(x) & MAGNITUDE
    code = tl.minimum(tl.maximum(size + first, 0), tl.maximum(size + second, BINADE))
    return tl.minimum(code, (element.max_code + 1) * BINADE - 1)


@triton.jit
def power_codes(x, first, second, element: tl.constexpr):
    """Float32 [...] -> codes, int32 [...]. first, second: as in `binades`"""
    sign: tl.constexpr = 1 << (element.bits - 1)
    code = binades(x, first, second, element) >> 23
    return code | ((bits_of(x) >> (32 - element.bits)) & sign)


@triton.jit
def power_values(x, first, second, element: tl.constexpr):
    """Float32 [...] -> what their codes mean, in steps. first, second: as in `binades`"""
    size = float_of(binades(x, first, second, element) & EXPONENT)
    size = size * constant(size, (254 - element.bias) << 23)
    return float_of(bits_of(size) | (bits_of(x) & SIGN))
