# SPDX-License-Identifier: BSD-3-Clause
"""Elements divided by their block's step, and where that needs no special cases (docs/cuda.md).

Elements x are float32 [...], and what belongs to their blocks is [units], or spread to [...] where
it meets elements. Ordinary blocks take a short way.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from blockscale.kernels.cuda.device.element import decode
from blockscale.kernels.cuda.device.lookup import Lookup
from blockscale.kernels.cuda.device.numerics import (
    EXPONENT,
    FLT_MAX_BITS,
    FLT_MIN_BITS,
    INTERPRETED,
    MAGNITUDE,
    bits_of,
    constant,
    float_of,
    pow2,
    reciprocal,
)

SMALLEST_STEP: tl.constexpr = tl.constexpr(2.0**-37)  # of which remainders are exact


class Scaling(NamedTuple):
    """What brings the elements of a block to steps and back; `divisor` makes it.

    first: float32, the factor that x is multiplied by, 1 / by or a power of two; where codes count
           binades (codes.py) int32, the first turning point
    second: float32, a power of two that x is multiplied by, too; or the second turning point
    by: float32, the divisor
    step: float32, what codes are multiplied by
    zero: int32 or float32, the zero point, or 0 where the format has none
    offset: float32, what is subtracted from x first, or 0.0 where the format has none
    """

    first: Any
    second: Any
    by: Any
    step: Any
    zero: Any
    offset: Any


@triton.constexpr_function
def divides_exactly(spec):
    """Whether elements are divided by an exact division: where quotients below 2^-64 matter, or, as
    a given zero point may be anything, those of 2^20 and more; and in the interpreter, whose fma
    rounds twice."""
    return INTERPRETED.value or tells_small_quotients_apart(spec) or spec.zero != ""


@triton.constexpr_function
def tells_small_quotients_apart(spec):
    """Whether the codes, or the rounding, tell quotients below 2^-64 from one another."""
    return has_small_values(spec.element) or tells_quotients_from_zero(spec)


@triton.constexpr_function
def has_small_values(element):
    """Whether codes tell quotients below 2^-64 from one another: of log8, and of some tables."""
    if element.family == "codebook":
        return not Lookup(element).how.plain
    return element.family == "minifloat" and element.bias + element.mbits > 63


@triton.constexpr_function
def tells_quotients_from_zero(spec):
    """Whether the least quotients have another code than 0."""
    return spec.rounding in ("down", "up", "stochastic") or spec.element.family == "binary"


@triton.constexpr_function
def uses_markstein(spec):
    """Whether ordinary blocks are divided by Markstein's method, without special cases."""
    if spec.offset:
        kinds = ("fp32", "fp16", "bf16") if not tells_quotients_from_zero(spec) else ()
        return spec.scale in kinds and not (spec.recip or has_small_values(spec.element))
    divides = spec.scale in ("fp32", "bf16", "pow2", "two_level", "code") and not spec.recip
    coarse = spec.scale in ("two_level", "code")  # a step may be far above its block's numbers
    if spec.scale == "code" and spec.smallest_step < SMALLEST_STEP.value:
        return False
    both = coarse and tells_quotients_from_zero(spec)
    return divides and not has_small_values(spec.element) and not both


@triton.constexpr_function
def has_ordinary_branch(dtype, spec, tile):
    """Whether a kernel has a branch of its own for programs all of whose blocks are ordinary.

    Not where threads hold whole columns of float32: two branches take too many registers there.
    """
    encodes = tile.chooses and tile.result in ("codes", "values")
    columns_held = (
        tile.kind != "row" and tile.part < tile.columns and dtype.primitive_bitwidth == 32
    )
    return encodes and not columns_held and (spec.poisons or uses_markstein(spec))


@triton.constexpr_function
def never_saturates(spec):
    """Whether no ordinary quotient rounds to more than the largest integer."""
    element = spec.element
    symmetric = element.family == "integer" and element.signed and not (spec.asym or spec.offset)
    exact = spec.scale == "fp32" or (spec.scale == "bf16" and element.bits <= 8)
    own = spec.full or (spec.statistic == "magnitude" and spec.levels == element.high)
    return symmetric and exact and own and uses_markstein(spec) and spec.rounding == "nearest_even"


@triton.constexpr_function
def clamps_first(spec, result):
    """Whether elements are clamped to the ends of the codes before they are divided.

    result: as in primitives.tiling.Tile
    """
    divides = not (spec.scale in ("e8m0", "fp16") or spec.recip or divides_exactly(spec))
    nearest = spec.element.family == "integer" and spec.rounding == "nearest_even"
    return divides and nearest and result != "gradient"


@triton.constexpr_function
def chooses_means(spec):
    """Whether scales are chosen from means of magnitudes."""
    return spec.statistic in ("mean", "mean_above")


@triton.jit
def all_ordinary(top, outer, spec: tl.constexpr):
    """Whether all of a program's blocks are ordinary: one bool.

    top: int32 [units], the bits of each block's largest magnitude
    outer: float32, their outer scale
    """
    if chooses_means(spec) or (uses_markstein(spec) and spec.scale != "two_level"):
        least: tl.constexpr = spec.least
        largest: tl.constexpr = spec.largest
        far = (top > largest) | ((top < least) & (top != 0))
        ordinary = tl.max(far.to(tl.int32)) == 0
    else:
        ordinary = tl.max(top) < EXPONENT
    if uses_markstein(spec) and spec.scale == "two_level":
        ordinary = ordinary & (outer * spec.inner.smallest_normal > 7.275957614183426e-12)  # 2^-37
        ordinary = ordinary & (outer < 1.2379400392853803e27)
    return ordinary


@triton.jit
def nearer_to_one(size, clamps: tl.constexpr):
    """The bits of magnitudes of steps -> a power of two for each, float32, that brings it to where
    remainders are exact.

    PTX, of which LLVM makes no vectors: of bools of 128 units it made words of 64, and ptxas, 12.8
    and 13.0, took those of the last 28 apart wrongly (docs/cuda.md).
    """
    # 2^126, or 2^100 for a multiple of the divisor to be finite
    above: tl.constexpr = 0x71800000 if clamps else 0x7E800000
    if INTERPRETED:
        second = tl.where(size < 0x2C800000, 1125899906842624.0, 1.0)  # 2^-38: 2^50
        second = tl.where(size < 0x13800000, 5.192296858534828e33, second)  # 2^-88: 2^112
        second = tl.where(size > above, 5.9604644775390625e-08, second)  # 2^-24
    else:
        ptx: tl.constexpr = select_ptx(above)
        second = tl.inline_asm_elementwise(ptx, "=f,r", [size], tl.float32, True, 1)
    return second


@triton.constexpr_function
def select_ptx(above):
    """The PTX of `nearer_to_one`."""
    return (
        "{ .reg .pred p; .reg .f32 t; setp.lt.u32 p, $1, 0x2C800000;"
        " selp.f32 t, 0f58800000, 0f3F800000, p; setp.lt.u32 p, $1, 0x13800000;"
        f" selp.f32 t, 0f77800000, t, p; setp.gt.u32 p, $1, 0x{above:08X};"
        " selp.f32 $0, 0f33800000, t, p; }"
    )


@triton.jit
def any_divisor(step, clamps: tl.constexpr, spec: tl.constexpr):
    """Any steps, float32 -> `first`, `second` and `by` of a Scaling for Markstein's division."""
    size = bits_of(step) & MAGNITUDE
    if spec.scale == "fp16":
        second = tl.zeros_like(step) + 1.0
    else:
        second = nearer_to_one(size, clamps)
    by = step * second
    if clamps:  # x / 0 is infinite: so is x over what is below all of its bounds
        small = float_of((bits_of(step) & -0x80000000) | FLT_MIN_BITS)
        by = tl.where(size == 0, small, by)
    first = reciprocal(by)
    by = tl.where(size == EXPONENT, 0.0, by)  # x / infinity has no remainder
    return first, second, by


@triton.jit
def divisor(scale, clamps: tl.constexpr, ordinary: tl.constexpr, spec: tl.constexpr):
    """A scale.Scale -> the Scaling of each unit.

    clamps: elements are clamped first (`clamps_first`); ordinary: for ordinary blocks
    """
    step = scale.divisor
    one = tl.zeros_like(step) + 1.0
    first, second, by = one, one, step
    if spec.scale == "e8m0":
        if spec.fraction_bits > 0:
            power = (127 + spec.fraction_bits) - scale.stored
            below = tl.minimum(power, 127)  # 2^128 and more take two factors
            inverse = pow2(below)
            second = pow2(power - below)
        else:  # 2^(127 - stored), of which 2^-127 is subnormal
            inverse = float_of(tl.maximum((254 - scale.stored) << 23, 0x00400000))
        first = inverse
        if not ordinary:
            first = tl.where(scale.stored == 255, step, inverse)
    elif spec.recip:
        if spec.scale == "two_level":
            inner: tl.constexpr = spec.inner
            outer = tl.where(one > 0.0, scale.outer, one)  # not added to 0: -0 keeps its sign
            inverse = tl.div_rn(tl.div_rn(one, outer), decode(scale.stored, inner))
        else:
            inverse = reciprocal(step)
        largest = constant(inverse, FLT_MAX_BITS)
        first = tl.where(inverse > largest, largest, inverse)
        first = tl.where(first < 0.0 - largest, 0.0 - largest, first)
    elif ordinary and uses_markstein(spec):
        first = reciprocal(by)
    elif not divides_exactly(spec):
        first, second, by = any_divisor(step, clamps, spec)
    return Scaling(first, second, by, scale.step, scale.zero, scale.offset)


@triton.jit
def ordinary_steps(x, scaling, spec: tl.constexpr):
    """Elements of ordinary blocks in steps: as `in_steps`, without its special cases."""
    if not uses_markstein(spec):
        y = in_steps(x, scaling, spec)
    elif spec.element.family == "binary":  # only signs matter
        y = x
    elif INTERPRETED:
        y = tl.div_rn(x, scaling.by)
    else:  # the remainder negated: so that -0 keeps its sign
        near = x * scaling.first
        y = tl.fma(tl.fma(near, scaling.by, x * -1.0), 0.0 - scaling.first, near)
    return y


@triton.jit
def bounded_steps(x, scaling, low, high):
    """Elements in steps, clamped: what rounds to low where they are below it, to high if above.

    Products with `by` are correctly rounded, so that their quotients are low and high, or next to
    them. With nothing beyond them, Markstein's division (`in_steps`) has no special case.
    """
    by = scaling.by
    one, other = by * low, by * high
    x = x * scaling.second
    x = tl.maximum(x, tl.minimum(one, other), propagate_nan=tl.PropagateNan.ALL)
    x = tl.minimum(x, tl.maximum(one, other), propagate_nan=tl.PropagateNan.ALL)
    near = x * scaling.first
    return tl.fma(tl.fma(near, 0.0 - by, x), scaling.first, near)


@triton.jit
def in_steps(x, scaling, spec: tl.constexpr):
    """Elements in steps of their blocks (docs/numerics.md, section 4).

    Division is Markstein's: with r = fl(1 / s) and q = fl(x * r), fl(q + fl(x - q * s) * r) is
    the correctly rounded quotient where no remainder underflows (docs/cuda.md); below 2^-64 steps
    nothing that is left depends on it, and from 2^20 on everything saturates.
    """
    first, by = scaling.first, scaling.by
    if spec.scale == "e8m0":
        y = x * first
        if spec.fraction_bits > 0:
            y = y * scaling.second
    elif spec.recip:
        y = x * first
    elif divides_exactly(spec):
        y = tl.div_rn(x, by)
    else:
        if spec.scale != "fp16":
            x = x * scaling.second
        near = x * first
        y = tl.fma(tl.fma(near, 0.0 - by, x), first, near)
        family: tl.constexpr = spec.element.family
        if family == "minifloat" or family == "codebook":  # the remainder of -0 is +0
            y = float_of(bits_of(y) | (bits_of(near) & -0x80000000))
        y = tl.where(tl.abs(near) < 1048576.0, y, near)
    return y


@triton.jit
def limits(zero, spec: tl.constexpr):
    """The smallest and largest number of steps before the zero point is added, float32."""
    if spec.adds_zeros:
        offset = zero.to(tl.float32)
        low, high = spec.element.low - offset, spec.element.high - offset
    else:
        low, high = spec.element.low, spec.element.high
    return low, high
