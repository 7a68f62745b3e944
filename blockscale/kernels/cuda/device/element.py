# SPDX-License-Identifier: BSD-3-Clause
"""Numbers counted in steps <-> codes, on the device (docs/numerics.md, sections 4 and 5).

Shapes and words are those of `device`: y is float32 [...] in steps, codes are int32 [...]. Each
function knows the families of spec.FAMILIES and refuses to compile for another.
"""

import triton
import triton.language as tl

from blockscale.kernels.cuda.device.lookup import code_of_number, least_value, value_of_code
from blockscale.kernels.cuda.device.numerics import (
    EXPONENT,
    INTERPRETED,
    MAGIC,
    MAGNITUDE,
    NAN_BITS,
    bits_of,
    constant,
    float_of,
    fma_up,
    whole_magnitude,
)

UNKNOWN: tl.constexpr = tl.constexpr("no CUDA kernel knows this family of elements")
SIGN: tl.constexpr = tl.constexpr(-0x80000000)
MAGIC_BITS: tl.constexpr = tl.constexpr(0x4B400000)


@triton.jit
def round_integer(
    y, low, high, u, rounding: tl.constexpr, in_range: tl.constexpr = False,
    even: tl.constexpr = False,
):  # fmt: skip
    """Integers: y without NaN -> R(y) within low and high, as float32, and as int32 whose low 22
    bits are the code.

    in_range: R(y) is within them by itself; even: low is -high
    """
    nearest: tl.constexpr = rounding == "nearest_even"
    if not in_range and (nearest or not even):  # first: whole numbers bound alike what is rounded
        y = tl.minimum(tl.maximum(y, low), high)
    if rounding == "nearest_even":
        shifted = y + MAGIC
        steps = shifted - MAGIC
        whole = bits_of(shifted)
    else:
        size = tl.abs(y)
        if even and not in_range:
            size = tl.minimum(size, high)
        size = whole_magnitude(size, y < 0.0, u, rounding)
        shifted = float_of(bits_of(size) | (bits_of(y) & SIGN)) + MAGIC
        steps = shifted - MAGIC  # no -0
        whole = bits_of(shifted)
    return steps, whole


@triton.jit
def round_minifloat(a, negative, u, element: tl.constexpr, rounding: tl.constexpr):
    """Minifloats: magnitudes a below infinity -> them rounded, float32, and their codes, int32.

    With M = 1.5 * 2^23 steps of a's binade, a + M is a rounded to steps, in the low bits of a sum.
    """
    shift: tl.constexpr = 23 - element.mbits
    smallest: tl.constexpr = (128 - element.bias) << 23  # the exponent field of the smallest normal
    power = tl.maximum(bits_of(a), smallest) & EXPONENT
    if rounding == "nearest_even":
        far = power + ((shift << 23) | 0x400000)
        shifted = a + float_of(far)
        value = shifted - float_of(far)
        steps = bits_of(shifted) - far
    else:
        per_step = float_of(((254 << 23) - power) + (element.mbits << 23))
        whole = whole_magnitude(a * per_step, negative, u, rounding)
        value = whole * float_of(power - (element.mbits << 23))
        steps = bits_of(whole + MAGIC) - 0x4B400000
    return value, steps + ((power - smallest) >> shift)


@triton.constexpr_function
def hardware(element, rounding):
    """The type of Triton to which the GPU itself converts with the same bits, or None.

    PTX ISA 8.1, cvt.rn.satfinite.e4m3x2.f32 and e5m2x2: nearest even, saturating, NaN is 0x7F.
    """
    if (
        INTERPRETED.value
        or rounding != "nearest_even"
        or element.family != "minifloat"
        or element.bits != 8
    ):
        return None
    types = {(3, 7, 126): tl.float8e4nv, (2, 15, 123): tl.float8e5}
    return types.get((element.mbits, element.bias, element.max_code))


@triton.constexpr_function
def whole(value):
    """A whole number, as int."""
    return int(value)


@triton.jit
def converted_pair(first, second, element: tl.constexpr):
    """Two float32 [...] -> their codes of 8 bits in the low 16 of an int32, by the GPU itself.

    element: one for which `hardware` gives a type

    Triton's own conversion leaves bytes to be taken apart, which ptxas 12.9 does wrongly where
    there are two to a thread.
    """
    if element.mbits == 3:
        word = tl.inline_asm_elementwise(
            "{ .reg .b16 t; cvt.rn.satfinite.e4m3x2.f32 t, $2, $1; cvt.u32.u16 $0, t; }",
            "=r,f,f", [first, second], tl.int32, True, 1,
        )  # fmt: skip
    else:
        tl.static_assert(element.mbits == 2, "the GPU converts to e4m3 and e5m2 alone")
        word = tl.inline_asm_elementwise(
            "{ .reg .b16 t; cvt.rn.satfinite.e5m2x2.f32 t, $2, $1; cvt.u32.u16 $0, t; }",
            "=r,f,f", [first, second], tl.int32, True, 1,
        )  # fmt: skip
    return word


@triton.constexpr_function
def three_binades(element, rounding):
    """Whether all values lie on three lines of steps: one, two and four smallest ones apart."""
    three = (
        element.family == "minifloat"
        and element.bias == 1
        and element.mbits > 0
        and element.nan < 0
    )
    draws = rounding == "stochastic" and not INTERPRETED.value
    return three and (rounding == "nearest_even" or draws)


@triton.jit
def three_lines(a, u, element: tl.constexpr, rounding: tl.constexpr):
    """Elements e2mY: magnitudes a below infinity -> their codes, int32 [...].

    The code is a concave function of the value in three pieces: the least of three lines. Each sum
    is one correctly rounded addition whose result counts steps of its line.
    """
    one: tl.constexpr = 1 << element.mbits
    first = on_line(a, u, 1.0 * one, MAGIC, rounding)
    second = on_line(a, u, 0.5 * one, MAGIC + one, rounding)
    third = on_line(a, u, 0.25 * one, MAGIC + 2 * one, rounding)
    top: tl.constexpr = 0x4B400000 + element.max_code
    return tl.minimum(tl.minimum(tl.minimum(first, second), third), top)


@triton.jit
def on_line(a, u, slope: tl.constexpr, start: tl.constexpr, rounding: tl.constexpr):
    """Float32 a -> the bits of R(a * slope) + start, int32 [...]."""
    if rounding == "stochastic":  # as numerics.whole_magnitude
        total = fma_up(fma_up(a, 16777216.0 * slope, 0.0 - u), 5.9604644775390625e-08, start)
    else:
        total = tl.fma(a, tl.zeros_like(a) + slope, tl.zeros_like(a) + start)
    return bits_of(total)


@triton.jit
def sign_code(y, element: tl.constexpr):
    """Numbers in steps -> codes of `binary`."""
    tl.static_assert(element.family == "binary", UNKNOWN)
    return tl.where(y < 0.0, 0, 1)


@triton.jit
def encode(
    y, source, low, high, zero, u, element: tl.constexpr, rounding: tl.constexpr,
    asym: tl.constexpr, ordinary: tl.constexpr, in_range: tl.constexpr = False,
):  # fmt: skip
    """Numbers in steps, of integers and codebooks without NaN -> codes.

    source: int32 [...], bits whose sign is y's; zero: int32, added to codes if `asym`
    low, high: the smallest and largest code of an integer, less the zero point
    ordinary: of ordinary blocks, so that y has no NaN and is far below 2^22
    in_range: of integers, as `round_integer` takes it
    """
    kind: tl.constexpr = hardware(element, rounding)
    if element.family == "integer":
        if asym and ordinary and rounding == "nearest_even":  # far from 2^22: integers are bounded
            code = bits_of(y + MAGIC) + (zero - MAGIC_BITS)
            code = tl.maximum(tl.minimum(code, whole(element.high)), whole(element.low))
        else:
            even: tl.constexpr = not asym and element.low == -element.high
            code = round_integer(y, low, high, u, rounding, in_range, even)[1]
            if asym:
                code = code + zero
    elif kind is not None:
        code = y.to(kind).to(tl.uint8, bitcast=True).to(tl.int32)
    elif element.family == "minifloat":
        a = tl.abs(y)
        if three_binades(element, rounding):
            code = three_lines(a, u, element, rounding)
        else:
            code = round_minifloat(tl.minimum(a, element.high), source < 0, u, element, rounding)[1]
        sign: tl.constexpr = 1 << (element.bits - 1)
        nan: tl.constexpr = element.nan if element.nan >= 0 else 0
        # magnitude codes have nothing above them in the low 22 bits
        code = code | ((source >> (32 - element.bits)) & sign)
        if not ordinary or element.nan >= 0:
            code = tl.where(y == y, code, nan)
    elif element.family == "codebook":
        code = code_of_number(y, element)
    else:
        code = sign_code(y, element)
    return code


@triton.jit
def round_trip(
    y, source, low, high, u, element: tl.constexpr, rounding: tl.constexpr, asym: tl.constexpr,
    ordinary: tl.constexpr, in_range: tl.constexpr,
):  # fmt: skip
    """Numbers in steps -> what their codes mean, still in steps; anything in poisoned blocks.

    The other arguments are those of `encode`.
    """
    kind: tl.constexpr = hardware(element, rounding)
    if element.family == "integer":
        even: tl.constexpr = not asym and element.low == -element.high
        value = round_integer(y, low, high, u, rounding, in_range, even)[0]
    elif kind is not None:
        value = y.to(kind).to(tl.float32)
    elif element.family == "minifloat":
        a = tl.minimum(tl.abs(y), element.high)
        value = round_minifloat(a, source < 0, u, element, rounding)[0]
        value = float_of(bits_of(value) | (source & SIGN))
        if not ordinary or element.nan >= 0:
            value = tl.where(y == y, value, constant(y, NAN_BITS if element.nan >= 0 else 0))
    elif element.family == "codebook":
        value = value_of_code(code_of_number(y, element), element)
    else:
        tl.static_assert(element.family == "binary", UNKNOWN)
        value = tl.where(y < 0.0, -1.0, 1.0)
    return value


@triton.jit
def inside(y, low, high, element: tl.constexpr, rounding: tl.constexpr):
    """Numbers in steps -> bool [...]: whether encoding does not saturate. NaN is not inside."""
    if element.family == "integer":
        steps = round_integer(y, low - 1.0, high + 1.0, y, rounding)[0]
        within = (steps >= low) & (steps <= high)
    elif element.family == "minifloat":
        a = tl.minimum(tl.abs(y), 4.0 * element.high)
        within = round_minifloat(a, y < 0.0, y, element, rounding)[0] <= element.high
    elif element.family == "codebook":
        within = (y >= least_value(element)) & (y <= element.high)
    else:
        tl.static_assert(element.family == "binary", UNKNOWN)
        within = tl.abs(y) <= 1.0
    return within & (y == y)


@triton.jit
def decode(code, element: tl.constexpr):
    """Codes int32 [...], bits above them do not matter -> their values, float32 [...]."""
    if element.family == "integer":
        if element.signed:
            whole = (code << (32 - element.bits)) >> (32 - element.bits)
        else:
            whole = code & ((1 << element.bits) - 1)
        value = whole.to(tl.float32)
    elif element.family == "minifloat":
        size = code & ((1 << (element.bits - 1)) - 1)
        sign = (code << (32 - element.bits)) & SIGN
        # its fields in a float32's places, subnormals too; the exponent is then off by the biases
        bits = bits_of(
            float_of(size << (23 - element.mbits)) * constant(size, (254 - element.bias) << 23)
        )
        if element.nan >= 0:
            bits = tl.where(size > element.max_code, NAN_BITS, bits)
        if element.infinity >= 0:
            bits = tl.where(size == element.infinity, EXPONENT, bits)
        value = float_of(bits | sign)
    elif element.family == "codebook":
        value = value_of_code(code, element)
    else:
        tl.static_assert(element.family == "binary", UNKNOWN)
        value = (2 * (code & 1) - 1).to(tl.float32)
    return value


@triton.jit
def magnitude(bits):
    """The bits of a float32 -> the bits of its magnitude, int32 [...]."""
    return bits & MAGNITUDE
