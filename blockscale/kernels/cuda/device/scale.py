# SPDX-License-Identifier: BSD-3-Clause
"""What blocks' scales are chosen from, chosen as, and read as (docs/numerics.md, section 3).

Everything has one number for each block, [units]: float32, or the bits of one as int32, which order
alike where there is no sign. `stored` is float32 where scales are floats or "pow2", and int32 with
a byte in it where they are "e8m0", "two_level" or "code".
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from blockscale.kernels.cuda.device.division import uses_markstein
from blockscale.kernels.cuda.device.element import converted_pair, decode, encode, hardware
from blockscale.kernels.cuda.device.numerics import (
    FLT_MAX_BITS,
    FLT_MIN_BITS,
    MAGIC,
    NAN_BITS,
    bits_of,
    clamp,
    constant,
    divide,
    float_of,
    narrow,
    normalized,
    pow2,
    quotient,
    reciprocal,
    widen,
    widen_part,
)

SIGN: tl.constexpr = tl.constexpr(-0x80000000)


@triton.constexpr_function
def is_stored_as_step(scale):
    """Whether a Spec's kind of scale is the step itself, a float."""
    return scale in ("fp32", "fp16", "bf16", "pow2")


@triton.constexpr_function
def is_byte(scale):
    """Whether a Spec's kind of scale is stored as a byte."""
    return scale in ("e8m0", "two_level", "code")


class UnitScale(NamedTuple):
    """The scale of each unit, [units], and what follows from it.

    stored: as above
    step: float32
    outer: float32, the outer scale of a two-level format, else 1.0
    zero: int32 or float32, the zero point, or 0 where the format has none
    offset: float32, what is added to values, or 0.0 where the format has none
    divisor: float32, what elements are divided by: the step, or 1 for a block of zeros
    """

    stored: Any
    step: Any
    outer: Any
    zero: Any
    offset: Any
    divisor: Any


@triton.jit
def choose_step(low, high, has_nan, outer, ordinary: tl.constexpr, spec: tl.constexpr):
    """Ranges of blocks -> what is stored of their scales.

    low, high: float32, low <= 0 <= high, unless blocks have offsets
    has_nan: bool; outer: float32, the outer scale
    ordinary: for ordinary blocks, of which what underflows is less than the least inner scale
    """
    near: tl.constexpr = ordinary and uses_markstein(spec)
    a = numerator(low, high, spec)
    if spec.scale == "e8m0":
        stored = tl.where(has_nan, 255, power_of_two(a, spec))
    elif spec.scale == "pow2":
        stored = pow2(power_of_two(a, spec))
    elif spec.scale == "two_level":
        if near:
            ratio = quotient(quotient(a, spec.levels, spec.per_level), outer, reciprocal(outer))
        else:
            ratio = divide(divide(a, spec.levels), outer)
        stored = inner_code(ratio, has_nan, spec.inner.smallest_normal, spec)
    else:
        if spec.full:
            raw = tl.maximum(divide(high, spec.element.high), divide(low, spec.element.low))
        elif near:
            raw = quotient(a, spec.levels, spec.per_level)
        else:
            raw = divide(a, spec.levels)
        kind: tl.constexpr = spec.scale
        if kind == "code":
            stored = inner_code(raw, has_nan, spec.smallest_step, spec)
        else:
            stored = float_scale(raw, kind)
    return stored


@triton.jit
def inner_code(ratio, has_nan, smallest: tl.constexpr, spec: tl.constexpr):
    """Quotients -> the codes of spec.inner, at least that of `smallest`, int32 (3.3, 3.5)."""
    inner: tl.constexpr = spec.inner
    ratio = tl.minimum(tl.maximum(ratio, smallest), inner.high)
    if hardware(inner, "nearest_even") is not None:
        stored = converted_pair(ratio, tl.zeros_like(ratio), inner)
    else:
        stored = encode(
            ratio, bits_of(ratio), 0.0, inner.high, 0, 0.0, inner, "nearest_even", False, False
        )
    stored = stored & 0xFF
    if spec.poisons:
        stored = tl.where(has_nan, inner.nan, stored)
    return stored


@triton.jit
def numerator(low, high, spec: tl.constexpr):
    """The number a of docs/numerics.md, 3.1, that scales are chosen from."""
    if spec.asym or spec.offset != "":
        a = tl.minimum(high - low, constant(high, FLT_MAX_BITS))
    elif spec.statistic == "magnitude":
        a = high
    elif spec.element.signed:
        a = tl.maximum(0.0 - low, high)
    else:
        a = high
    return a


@triton.jit
def float_scale(raw, kind: tl.constexpr):
    """A quotient -> the scale in its dtype's values and range, as float32 (3.3)."""
    if kind == "fp16":
        stored = narrow(raw, tl.float16).to(tl.float32)
        stored = tl.minimum(tl.maximum(stored, 5.9604644775390625e-08), 65504.0)
    elif kind == "bf16":
        stored = narrow(raw, tl.bfloat16).to(tl.float32)
        stored = clamp(stored, FLT_MIN_BITS, 0x7F7F0000)
    else:
        tl.static_assert(kind == "fp32", "unknown kind of scale")
        stored = clamp(raw, FLT_MIN_BITS, FLT_MAX_BITS)
    return stored


@triton.jit
def power_of_two(a, spec: tl.constexpr):
    """Numerators a -> the byte of e8m0, or the exponent of pow2, int32: one integer rule (3.4)."""
    if spec.scale == "e8m0" and spec.emax > spec.fraction_bits and not spec.nearest:
        # zeros and all subnormals get byte 0, and nothing more than 254
        above = (bits_of(a) + (0x800000 - spec.threshold)) >> 23
        stored = tl.maximum(above - (spec.emax - spec.fraction_bits), 0)
    else:
        zero = a == 0.0
        if spec.nearest:
            s = divide(a, spec.levels)
            zero = s == 0.0
            power, mantissa = normalized(s)
            power = power - 127 + (mantissa > 0x3504F3).to(tl.int32)
        else:
            power, mantissa = normalized(a)
            power = power - 127 - spec.emax + (mantissa >= spec.threshold).to(tl.int32)
        if spec.scale == "e8m0":
            byte = tl.minimum(tl.maximum(power + spec.fraction_bits, -127), 127) + 127
            stored = tl.where(zero, 0, byte)
        else:
            stored = tl.where(zero, -126, tl.minimum(tl.maximum(power, -126), 127))
    return stored


@triton.jit
def outer_scale(largest, spec: tl.constexpr):
    """The largest numerator -> the outer scale (3.5)."""
    return clamp(divide(largest, spec.outer_levels), FLT_MIN_BITS, FLT_MAX_BITS)


@triton.jit
def ordinary_step(stored, outer, spec: tl.constexpr):
    """As `step_of`, of ordinary blocks."""
    if spec.scale == "two_level" and spec.inner.family == "minifloat" and uses_markstein(spec):
        inner: tl.constexpr = spec.inner
        power: tl.constexpr = (254 - inner.bias) << 23
        step = outer * (float_of(stored << (23 - inner.mbits)) * constant(stored, power))
    elif spec.scale == "code" and uses_markstein(spec):
        kind: tl.constexpr = spec.inner
        up: tl.constexpr = (254 - kind.bias) << 23
        step = float_of(stored << (23 - kind.mbits)) * constant(stored, up)
    else:
        step = step_of(stored, outer, spec)
    return step


@triton.jit
def step_of(stored, outer, spec: tl.constexpr):
    """What is stored, and the outer scale -> the step, float32 (1.3)."""
    if spec.scale == "e8m0":
        step = pow2(tl.minimum(stored, 254) - (127 + spec.fraction_bits))
        step = tl.where(stored == 255, constant(step, NAN_BITS), step)
    elif spec.scale == "two_level":
        inner: tl.constexpr = spec.inner
        value = decode(stored, inner)
        step = outer * value
        size = bits_of(clamp(tl.abs(step), 1, FLT_MAX_BITS)) | (bits_of(step) & SIGN)
        finite = tl.where(step == step, float_of(size), step)
        step = tl.where(tl.minimum(tl.abs(value), tl.abs(outer)) == 0.0, step, finite)
    elif spec.scale == "code":
        kind: tl.constexpr = spec.inner
        step = decode(stored & 0xFF, kind)
    else:
        tl.static_assert(is_stored_as_step(spec.scale), "unknown kind of scale")
        step = stored
    return step


@triton.jit
def load_scale(
    scale, outer, zero, offset, index, present, outer_index, spec: tl.constexpr
):  # fmt: skip
    """A UnitScale from memory.

    scale, outer, zero, offset: pointers, None where the format has no such thing
    index: int64 [units], where in `scale`, `zero` and `offset`; outer_index: where in `outer`
    present: bool
    """
    stored = tl.load(scale + index, mask=present, other=1)
    if is_byte(spec.scale):
        stored = stored.to(tl.int32)
    else:
        stored = widen_part(stored)
    above = 1.0
    if spec.scale == "two_level":
        above = tl.load(outer + outer_index, mask=present, other=1.0)
    point, term = 0, 0.0
    if spec.asym:
        point = tl.load(zero + index, mask=present, other=0)
        if spec.zero != "":
            point = widen_part(point)
    if spec.offset != "":
        term = widen_part(tl.load(offset + index, mask=present, other=0))
    step = step_of(stored, above, spec)
    return UnitScale(stored, step, above, point, term, step)


@triton.jit
def narrow_scale(stored, dtype: tl.constexpr):
    """A scale as `choose_step` gives it -> in the dtype of its memory, whose values it has."""
    if dtype != tl.uint8:
        stored = narrow(stored, dtype)
    return stored.to(dtype)


@triton.jit
def zero_point(low, step, spec: tl.constexpr):
    """The smallest number and the step of each block -> the zero point (3.6): int32, or float32 of
    its type's values."""
    t = divide(low, step)
    if spec.zero != "":
        zero = spec.element.low - t
        kind: tl.constexpr = spec.zero
        zero = stored_as(tl.where(zero == zero, zero, 0.0), kind)
    else:
        zero = whole_zero_point(t, spec)
    return zero


@triton.jit
def whole_zero_point(t, spec: tl.constexpr):
    """The smallest number of each block in steps -> the zero point, int32."""
    near = tl.minimum(tl.maximum(t, -1048576.0), 1048576.0)  # far outside, yet whole if rounded
    zero = spec.element.low - ((near + MAGIC) - MAGIC)
    zero = tl.where(t == t, zero, 0.0)
    return tl.minimum(tl.maximum(zero, spec.element.low), spec.element.high).to(tl.int32)


@triton.jit
def block_offset(low, step, spec: tl.constexpr):
    """The smallest number and the step of each block -> the offset, float32 of its type's values
    (3.8)."""
    kind: tl.constexpr = spec.offset
    offset = low - step * spec.element.low
    return stored_as(tl.where(offset == offset, offset, 0.0), kind)


@triton.jit
def stored_as(x, kind: tl.constexpr):
    """x, no NaN -> the nearest number that a type stores, at most its largest: float32."""
    if kind == "fp16":
        x = tl.minimum(tl.maximum(x, -65504.0), 65504.0)
        x = narrow(x, tl.float16).to(tl.float32)
    elif kind == "bf16":
        x = widen(narrow(between(x, 0x7F7F0000), tl.bfloat16))
    else:
        tl.static_assert(kind == "fp32", "unknown type of offsets and zero points")
        x = between(x, FLT_MAX_BITS)
    return x


@triton.jit
def between(x, bits: tl.constexpr):
    """x, no NaN, with a magnitude of at most that of the float32 with these bits."""
    largest = constant(x, bits)
    return tl.minimum(tl.maximum(x, 0.0 - largest), largest)
