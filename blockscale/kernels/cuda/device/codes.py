# SPDX-License-Identifier: BSD-3-Clause
"""Elements of a tile -> their codes, their values, or whether their gradients pass.

Here division (division.py) and rounding (element.py) meet, for float32 elements [...] and for pairs
of 16 bits [...], the first number in the low half. `scaling` is a division.Scaling, spread to the
elements where these are numbers, and [units] where they are pairs.
"""

import triton
import triton.language as tl

from blockscale.kernels.cuda.device.division import (
    Scaling,
    bounded_steps,
    clamps_first,
    in_steps,
    limits,
    never_saturates,
    ordinary_steps,
    uses_markstein,
)
from blockscale.kernels.cuda.device.element import (
    SIGN,
    converted_pair,
    encode,
    hardware,
    inside,
    round_trip,
    three_binades,
    three_lines,
)
from blockscale.kernels.cuda.device.lanes import (
    MAGNITUDES,
    join_pairs,
    narrow_pairs,
    narrowing_of,
    signed_nibbles,
    split_pairs,
    spread_pairs,
)
from blockscale.kernels.cuda.device.numerics import (
    EXPONENT,
    INTERPRETED,
    MAGNITUDE,
    bits_of,
    constant,
    float_of,
)
from blockscale.kernels.cuda.device.tile import expand

# Codes that are powers of two, as log4 has them, in blocks that are `ordinary`.
#
# Elements are not divided. With a step s, codes turn over at the least x with fl(x / s) > 2^-bias
# and, from the second code on, at 1.5 s times powers of two, or at the float32 next to it that has
# such a quotient. So codes count binades above two numbers of each block, its turning points.

BINADE: tl.constexpr = tl.constexpr(0x00800000)


@triton.constexpr_function
def counts_binades(ordinary, spec):
    """Whether codes are found in this way."""
    element = spec.element
    plain = element.family == "minifloat" and element.mbits == 0 and element.nan < 0
    plain = plain and not spec.offset and spec.scale != "code"  # whose quotients may saturate
    return plain and ordinary and uses_markstein(spec) and spec.rounding == "nearest_even"


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


# Any code.


@triton.jit
def spread_scaling(scaling, spec: tl.constexpr, tile: tl.constexpr):
    """A Scaling of [units] -> the same for elements [rows, columns]."""
    zero = scaling.zero
    if spec.asym:
        zero = expand(zero, tile)
    offset = scaling.offset
    if spec.offset != "":
        offset = expand(offset, tile)
    return Scaling(
        expand(scaling.first, tile), expand(scaling.second, tile), expand(scaling.by, tile),
        expand(scaling.step, tile), zero, offset,
    )  # fmt: skip


@triton.jit
def spread_scaling_pairs(scaling, spec: tl.constexpr, tile: tl.constexpr):
    """A Scaling of [units] -> one for the first number of each pair, and one for the second.

    tile: in pairs
    """
    first, first_2 = spread_pairs(scaling.first, tile)
    second, second_2 = spread_pairs(scaling.second, tile)
    by, by_2 = spread_pairs(scaling.by, tile)
    step, step_2 = spread_pairs(scaling.step, tile)
    zero, zero_2 = scaling.zero, scaling.zero
    if spec.asym:
        zero, zero_2 = spread_pairs(zero, tile)
    offset, offset_2 = scaling.offset, scaling.offset
    if spec.offset != "":
        offset, offset_2 = spread_pairs(offset, tile)
    one = Scaling(first, second, by, step, zero, offset)
    return one, Scaling(first_2, second_2, by_2, step_2, zero_2, offset_2)


@triton.jit
def steps_of(x, scaling, ordinary: tl.constexpr, result: tl.constexpr, spec: tl.constexpr):
    """Elements -> them in steps, of integers and codebooks without NaN, and the limits of
    what they may be.

    result: "codes" or "values"
    """
    low, high = limits(scaling.zero, spec)
    if spec.offset != "":
        x = x - scaling.offset
    if ordinary:
        y = ordinary_steps(x, scaling, spec)
    elif clamps_first(spec, result):
        y = bounded_steps(x, scaling, low, high)
    else:
        y = in_steps(x, scaling, spec)
    family: tl.constexpr = spec.element.family
    if (family == "integer" or family == "codebook") and not ordinary:
        y = tl.where(y == y, y, 0.0)
    if spec.zero != "":
        y = y + scaling.zero
    return y, low, high


@triton.jit
def passes(x, scaling, spec: tl.constexpr):
    """Elements -> bool: whether a gradient passes, because they do not saturate."""
    element: tl.constexpr = spec.element
    rounding: tl.constexpr = spec.rounding
    low, high = limits(scaling.zero, spec)
    if spec.offset != "":
        x = x - scaling.offset
    y = in_steps(x, scaling, spec)
    if spec.zero != "":
        y = y + scaling.zero
    return inside(y, low, high, element, rounding)


@triton.jit
def value_of(x, scaling, u, ordinary: tl.constexpr, spec: tl.constexpr):
    """Elements -> their values after a round trip through codes, float32."""
    element: tl.constexpr = spec.element
    rounding: tl.constexpr = spec.rounding
    if counts_binades(ordinary, spec):
        value = power_values(x, scaling.first, scaling.second, element)
    else:
        in_range: tl.constexpr = never_saturates(spec) if ordinary else clamps_first(spec, "values")
        y, low, high = steps_of(x, scaling, ordinary, "values", spec)
        source = bits_of(x) if ordinary and spec.offset == "" else bits_of(y)
        asym: tl.constexpr = spec.adds_zeros
        value = round_trip(y, source, low, high, u, element, rounding, asym, ordinary, in_range)
    if spec.zero != "":
        value = value - scaling.zero
    value = value * scaling.step
    if spec.offset != "":
        value = value + scaling.offset
    return value


@triton.jit
def code_of(x, scaling, u, ordinary: tl.constexpr, spec: tl.constexpr):
    """Elements -> their codes, int32."""
    element: tl.constexpr = spec.element
    rounding: tl.constexpr = spec.rounding
    asym: tl.constexpr = spec.adds_zeros
    if counts_binades(ordinary, spec):
        code = power_codes(x, scaling.first, scaling.second, element)
    else:
        in_range: tl.constexpr = never_saturates(spec) if ordinary else clamps_first(spec, "codes")
        y, low, high = steps_of(x, scaling, ordinary, "codes", spec)
        positive: tl.constexpr = (ordinary or spec.scale == "e8m0") and spec.offset == ""
        source = bits_of(x) if positive else bits_of(y)  # of steps
        code = encode(
            y, source, low, high, scaling.zero, u, element, rounding, asym, ordinary, in_range
        )
    return code


@triton.jit
def codes_of_pairs(
    x, scaling, u, u_2, ordinary: tl.constexpr, dtype: tl.constexpr, spec: tl.constexpr,
    tile: tl.constexpr,
):  # fmt: skip
    """Pairs -> pairs of codes or of values, as tile.result says.

    x: int32 [rows, columns / 2], pairs of `dtype`; scaling: [units]; tile: not in pairs
    u, u_2: of the first and the second number of each pair
    Codes are uint8 with two codes, where narrowing or `nibbles_of` makes them so, else int32 with
    the second code `stored_bits` above the first.
    """
    element: tl.constexpr = spec.element
    as_read: tl.constexpr = tile.in_pairs
    if tile.result == "codes" and narrowing_of(dtype, ordinary, tile) != "":
        first, first_2 = spread_pairs(scaling.first, as_read)
        second, second_2 = spread_pairs(scaling.second, as_read)
        word = narrow_pairs(x, first, first_2, second, second_2, tile)
    else:
        scaling, scaling_2 = spread_scaling_pairs(scaling, spec, as_read)
        one, two = split_pairs(x, dtype)
        if tile.result == "values":
            one = value_of(one, scaling, u, ordinary, spec)
            two = value_of(two, scaling_2, u_2, ordinary, spec)
            word = join_pairs(one, two, dtype)
        elif hardware(spec.element, spec.rounding) is not None:
            one, _, _ = steps_of(one, scaling, ordinary, "codes", spec)
            two, _, _ = steps_of(two, scaling_2, ordinary, "codes", spec)
            word = converted_pair(one, two, element)
        elif makes_nibbles(ordinary, spec, tile):
            word = nibbles_of(x, scaling, scaling_2, u, u_2, dtype, spec)
        else:
            one = code_of(one, scaling, u, ordinary, spec)
            two = code_of(two, scaling_2, u_2, ordinary, spec)
            bits: tl.constexpr = stored_bits(spec, tile)
            word = (one & ((1 << bits) - 1)) | (two << bits)
    return word


@triton.jit
def nibbles_of(x, scaling, scaling_2, u, u_2, dtype: tl.constexpr, spec: tl.constexpr):
    """Pairs of ordinary blocks -> pairs of codes of four bits, uint8.

    scaling, u: of the first number of each pair; scaling_2, u_2: of the second
    """
    element: tl.constexpr = spec.element
    rounding: tl.constexpr = spec.rounding
    one, two = split_pairs(x & MAGNITUDES, dtype)  # steps are positive
    one, _, _ = steps_of(one, scaling, True, "codes", spec)
    two, _, _ = steps_of(two, scaling_2, True, "codes", spec)
    one, two = three_lines(one, u, element, rounding), three_lines(two, u_2, element, rounding)
    return signed_nibbles(x, one, two)


@triton.constexpr_function
def makes_nibbles(ordinary, spec, tile):
    """Whether `nibbles_of` makes the codes: it puts signs to pairs of codes together."""
    short = spec.element.bits == 4 and three_binades(spec.element, spec.rounding)
    return short and ordinary and tile.packs and not (spec.offset or INTERPRETED.value)


@triton.constexpr_function
def stored_bits(spec, tile):
    """The bits of a code or value as `codes_of_pairs` joins two of them."""
    if tile.result == "values":
        return 16
    return spec.element.bits if tile.packs else 8 if spec.element.bits <= 8 else 16
