"""What blocks' scales are chosen from, chosen as, and read as (docs/numerics.md, section 3).

`spec` is a spec.Spec. One number a block: float32, or bits of one as int32, which order alike where
there is no sign.
"""

import triton
import triton.language as tl

from blockscale.kernels.cuda.device.division import repairs
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
)


@triton.jit
def choose_step(low, high, poisoned, outer, settled: tl.constexpr, spec: tl.constexpr):
    """Ranges of blocks -> what is stored: float32, or int32 for bytes.

    low <= 0 <= high: float32; poisoned: bool; outer: the outer scale, for two levels; settled:
    for `ordinary` blocks, of which what underflows is less than the least inner scale.
    """
    near: tl.constexpr = settled and repairs(spec)
    a = numerator(low, high, spec)
    if spec.scale == "e8m0":
        stored = tl.where(poisoned, 255, power_of_two(a, spec))
    elif spec.scale == "pow2":
        stored = pow2(power_of_two(a, spec))
    elif spec.scale == "two_level":
        if near:
            ratio = quotient(quotient(a, spec.levels, spec.per_level), outer, reciprocal(outer))
        else:
            ratio = divide(divide(a, spec.levels), outer)
        ratio = tl.minimum(tl.maximum(ratio, spec.inner.smallest_normal), spec.inner.high)
        inner: tl.constexpr = spec.inner
        if hardware(inner, "nearest_even") is not None:
            stored = converted_pair(ratio, tl.zeros_like(ratio), inner)
        else:
            stored = encode(
                ratio, bits_of(ratio), 0.0, inner.high, 0, 0.0, inner, "nearest_even", False, False
            )
        stored = stored & 0xFF
        if spec.poisons:
            stored = tl.where(poisoned, spec.inner.nan, stored)
    else:
        if spec.full:
            raw = tl.maximum(divide(high, spec.element.high), divide(low, spec.element.low))
        elif near:
            raw = quotient(a, spec.levels, spec.per_level)
        else:
            raw = divide(a, spec.levels)
        kind: tl.constexpr = spec.scale
        stored = float_scale(raw, kind)
    return stored


@triton.jit
def numerator(low, high, spec: tl.constexpr):
    """a of docs/numerics.md, 3.1."""
    if spec.asym:
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
    """The quotient in the scale's dtype and range, as float32 (3.3)."""
    if kind == "fp16":
        stored = narrow(raw, tl.float16).to(tl.float32)
        stored = tl.minimum(tl.maximum(stored, 5.9604644775390625e-08), 65504.0)
    elif kind == "bf16":
        stored = narrow(raw, tl.bfloat16).to(tl.float32)
        stored = clamp(stored, FLT_MIN_BITS, 0x7F7F0000)
    else:
        stored = clamp(raw, FLT_MIN_BITS, FLT_MAX_BITS)
    return stored


@triton.jit
def power_of_two(a, spec: tl.constexpr):
    """The byte of e8m0, or the exponent of pow2: one integer rule for all (3.4)."""
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
    """As `step_of`, of blocks that are `ordinary`."""
    if spec.scale == "two_level" and spec.inner.family == "minifloat" and repairs(spec):
        inner: tl.constexpr = spec.inner
        power: tl.constexpr = (254 - inner.bias) << 23
        step = outer * (float_of(stored << (23 - inner.mbits)) * constant(stored, power))
    else:
        step = step_of(stored, outer, spec)
    return step


@triton.jit
def step_of(stored, outer, spec: tl.constexpr):
    """What is stored -> the step, float32 (1.3)."""
    if spec.scale == "e8m0":
        step = pow2(tl.minimum(stored, 254) - (127 + spec.fraction_bits))
        step = tl.where(stored == 255, constant(step, NAN_BITS), step)
    elif spec.scale == "two_level":
        inner: tl.constexpr = spec.inner
        step = outer * decode(stored, inner)
        step = tl.where(step == step, clamp(step, 1, FLT_MAX_BITS), step)
    else:
        step = stored
    return step


@triton.jit
def load_scale(scale, outer, zero, index, present, outer_index, spec: tl.constexpr):
    """What is stored for each unit: (stored, step, outer scale, zero point)."""
    stored = tl.load(scale + index, mask=present, other=1)
    if spec.scale == "e8m0" or spec.scale == "two_level":
        stored = stored.to(tl.int32)
    else:
        stored = widen(stored)
    above = 1.0
    if spec.scale == "two_level":
        above = tl.load(outer + outer_index, mask=present, other=1.0)
    offset = 0
    if spec.asym:
        offset = tl.load(zero + index, mask=present, other=0)
    return stored, step_of(stored, above, spec), above, offset


@triton.jit
def narrow_scale(stored, dtype: tl.constexpr):
    """A scale as `choose_step` has it -> as it is stored; it is of that dtype's values."""
    if dtype != tl.uint8:
        stored = narrow(stored, dtype)
    return stored.to(dtype)


@triton.jit
def zero_point(low, step, spec: tl.constexpr):
    """The zero point, int32 (3.6)."""
    t = divide(low, step)
    near = tl.minimum(tl.maximum(t, -1048576.0), 1048576.0)  # far outside, yet whole if rounded
    zero = spec.element.low - ((near + MAGIC) - MAGIC)
    zero = tl.where(t == t, zero, 0.0)
    return tl.minimum(tl.maximum(zero, spec.element.low), spec.element.high).to(tl.int32)
