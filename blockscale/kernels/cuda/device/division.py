"""Elements divided by their block's step, and where that needs no cases (docs/cuda.md).

`spec` is a spec.Spec. Blocks that are `ordinary` take a short way.
"""

import triton
import triton.language as tl

from blockscale.kernels.cuda.device.element import decode
from blockscale.kernels.cuda.device.numerics import (
    EXPONENT,
    FLT_MAX_BITS,
    FLT_MIN_BITS,
    INTERPRETED,
    MAGNITUDE,
    bits_of,
    constant,
    divide,
    float_of,
    pow2,
    reciprocal,
)

LARGE: tl.constexpr = tl.constexpr(0x6C800000)  # the bits of 2^90


@triton.constexpr_function
def divides_exactly(spec):
    """Whether quotients are divided out: below 2^-64 they matter to rounding, too, or to log8.

    And in the interpreter, whose fma rounds twice.
    """
    return INTERPRETED.value or minds_small_ones(spec)


@triton.constexpr_function
def minds_small_ones(spec):
    """Whether the codes of log8, or a rounding, tell the least quotients from one another."""
    log8 = spec.element.family == "minifloat" and spec.element.bias + spec.element.mbits > 63
    return log8 or minds_zero(spec)


@triton.constexpr_function
def minds_zero(spec):
    """Whether the least quotients are told from 0."""
    return spec.rounding in ("down", "up", "stochastic") or spec.element.family == "binary"


@triton.constexpr_function
def repairs(spec):
    """Whether Markstein's division needs no case of its own in blocks that are `ordinary`."""
    divided = spec.scale in ("fp32", "bf16", "pow2", "two_level") and not spec.recip
    log8 = spec.element.family == "minifloat" and spec.element.bias + spec.element.mbits > 63
    two = spec.scale == "two_level" and minds_zero(spec)
    return divided and not log8 and not two


@triton.constexpr_function
def settles(dtype, spec, tile):
    """Whether programs all of whose blocks are `ordinary` have a branch of their own.

    Not where threads hold whole columns of float32: two branches take too many registers there.
    """
    encodes = tile.chooses and tile.result in ("codes", "values")
    tall = tile.kind != "row" and tile.part < tile.columns and dtype.primitive_bitwidth == 32
    return encodes and not tall and (spec.poisons or repairs(spec))


@triton.constexpr_function
def fits(spec):
    """Whether no ordinary quotient rounds to more than the largest integer."""
    element = spec.element
    symmetric = element.family == "integer" and element.signed and not spec.asym
    exact = spec.scale == "fp32" or (spec.scale == "bf16" and element.bits <= 8)
    own = spec.full or (spec.statistic == "magnitude" and spec.levels == element.high)
    return symmetric and exact and own and repairs(spec) and spec.rounding == "nearest_even"


@triton.constexpr_function
def bounds(spec, result):
    """Whether elements are brought between the ends of the codes before they are divided."""
    divided = not (spec.scale in ("e8m0", "fp16") or spec.recip or divides_exactly(spec))
    nearest = spec.element.family == "integer" and spec.rounding == "nearest_even"
    return divided and nearest and result != "gradient"


@triton.constexpr_function
def averages(spec):
    """Whether scales are means."""
    return spec.statistic in ("mean", "mean_above")


@triton.jit
def ordinary(top, above, spec: tl.constexpr):
    """Whether all of a program's blocks are finite, with steps that `repairs` divides by.

    top: the bits of each one's largest magnitude; above: their outer scale
    """
    if averages(spec) or (repairs(spec) and spec.scale != "two_level"):
        least: tl.constexpr = spec.least
        far = (top > LARGE) | ((top < least) & (top != 0))
        calm = tl.max(far.to(tl.int32)) == 0
    else:
        calm = tl.max(top) < EXPONENT
    if repairs(spec) and spec.scale == "two_level":
        calm = calm & (above * spec.inner.smallest_normal > 7.275957614183426e-12)  # 2^-37
        calm = calm & (above < 1.2379400392853803e27)
    return calm


@triton.jit
def repaired_divisor(step, bounded: tl.constexpr, spec: tl.constexpr):
    """As `divisor`, of any float for Markstein's division."""
    one = tl.zeros_like(step) + 1.0
    second = one
    size = bits_of(step) & MAGNITUDE
    if spec.scale != "fp16":  # a power of two, to bring steps to where remainders are exact
        second = tl.where(size < 0x2C800000, 1125899906842624.0, second)  # 2^-38: 2^50
        second = tl.where(size < 0x13800000, 5.192296858534828e33, second)  # 2^-88: 2^112
        # 2^126, or 2^100 for a multiple of `by` to be finite: 2^-24
        above: tl.constexpr = 0x71800000 if bounded else 0x7E800000
        second = tl.where(size > above, 5.9604644775390625e-08, second)
    by = step * second
    if bounded:  # x / 0 is infinite: so is x over what is below all of its bounds
        small = float_of((bits_of(step) & -0x80000000) | FLT_MIN_BITS)
        by = tl.where(size == 0, small, by)
    first = reciprocal(by)
    by = tl.where(size == EXPONENT, 0.0, by)  # x / infinity has no remainder
    return first, second, by


@triton.jit
def divisor(stored, step, outer, bounded: tl.constexpr, settled: tl.constexpr, spec: tl.constexpr):
    """What `in_steps` takes for each block: (a factor, another, a divisor).

    settled: for ordinary blocks
    """
    one = tl.zeros_like(step) + 1.0
    first, second, by = one, one, step
    if spec.scale == "e8m0":
        if spec.fraction_bits > 0:
            power = (127 + spec.fraction_bits) - stored
            below = tl.minimum(power, 127)  # 2^128 and more take two factors
            inverse = pow2(below)
            second = pow2(power - below)
        else:  # 2^(127 - stored), of which 2^-127 is subnormal
            inverse = float_of(tl.maximum((254 - stored) << 23, 0x00400000))
        first = inverse
        if not settled:
            first = tl.where(stored == 255, step, inverse)
    elif spec.recip:
        if spec.scale == "two_level":
            inner: tl.constexpr = spec.inner
            inverse = divide(divide(one, outer), decode(stored, inner))
        else:
            inverse = reciprocal(step)
        largest = constant(inverse, FLT_MAX_BITS)
        first = tl.where(inverse > largest, largest, inverse)
    elif settled and repairs(spec):
        first = reciprocal(by)
    elif not divides_exactly(spec):
        first, second, by = repaired_divisor(step, bounded, spec)
    return first, second, by


@triton.jit
def ordinary_steps(x, first, second, by, spec: tl.constexpr):
    """x [...] in steps of its block, which is `ordinary`: as `in_steps`, without its cases."""
    if not repairs(spec):
        y = in_steps(x, first, second, by, spec)
    elif spec.element.family == "binary":  # only signs matter
        y = x
    elif INTERPRETED:
        y = tl.div_rn(x, by)
    else:  # the remainder negated: so that -0 keeps its sign
        near = x * first
        y = tl.fma(tl.fma(near, by, x * -1.0), 0.0 - first, near)
    return y


@triton.jit
def bounded_steps(x, first, second, by, low, high):
    """x [...] in steps of its block: what rounds to low if it is below, to high if above.

    Products with `by` are correctly rounded, so that their quotients are low and high, or next to
    them. With nothing beyond them, Markstein's division (`in_steps`) has no case of its own.
    """
    one, other = by * low, by * high
    x = x * second
    x = tl.maximum(x, tl.minimum(one, other), propagate_nan=tl.PropagateNan.ALL)
    x = tl.minimum(x, tl.maximum(one, other), propagate_nan=tl.PropagateNan.ALL)
    near = x * first
    return tl.fma(tl.fma(near, 0.0 - by, x), first, near)


@triton.jit
def in_steps(x, first, second, by, spec: tl.constexpr):
    """x [...] in steps of its block (section 4).

    Division is Markstein's: with r = fl(1 / s) and q = fl(x * r), fl(q + fl(x - q * s) * r) is
    the correctly rounded quotient where no remainder underflows (docs/cuda.md); below 2^-64 steps
    nothing that is left depends on it, and from 2^20 on everything saturates.
    """
    if spec.scale == "e8m0":
        y = x * first
        if spec.fraction_bits > 0:
            y = y * second
    elif spec.recip:
        y = x * first
    elif divides_exactly(spec):
        y = tl.div_rn(x, by)
    else:
        if spec.scale != "fp16":
            x = x * second
        near = x * first
        y = tl.fma(tl.fma(near, 0.0 - by, x), first, near)
        if spec.element.family == "minifloat":  # the remainder of -0 is +0
            y = float_of(bits_of(y) | (bits_of(near) & -0x80000000))
        y = tl.where(tl.abs(near) < 1048576.0, y, near)
    return y


@triton.jit
def limits(zero, spec: tl.constexpr):
    """The smallest and largest number of steps before the zero point is added."""
    if spec.asym:
        offset = zero.to(tl.float32)
        low, high = spec.element.low - offset, spec.element.high - offset
    else:
        low, high = spec.element.low, spec.element.high
    return low, high
