# SPDX-License-Identifier: BSD-3-Clause
"""Arithmetic on the device with the reference's bits (docs/numerics.md, sections 2 and 3.4).

Every function works element by element, so that [...] is any shape, and float32 unless it says
otherwise. Triton's `/` is approximate, and Python numbers below 2^-126 become float64 in it: what
is here uses neither. Kernels are compiled without contraction to FMAs; where one is meant it is
spelled out.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from blockscale.kernels.cuda import interpreting

INTERPRETED: tl.constexpr = tl.constexpr(interpreting())
MAGIC: tl.constexpr = tl.constexpr(12582912.0)  # 1.5 * 2^23: neighbours 1 apart, low 22 bits 0
EXPONENT: tl.constexpr = tl.constexpr(0x7F800000)  # also the bits of infinity
MAGNITUDE: tl.constexpr = tl.constexpr(0x7FFFFFFF)
NAN_BITS: tl.constexpr = tl.constexpr(0x7FC00000)
FLT_MAX_BITS: tl.constexpr = tl.constexpr(0x7F7FFFFF)
FLT_MIN_BITS: tl.constexpr = tl.constexpr(0x00800000)


@triton.jit
def bits_of(x):
    """Float32 [...] -> its bits, int32 [...]."""
    return x.to(tl.int32, bitcast=True)


@triton.jit
def float_of(bits):
    """The bits of a float32, int32 [...] -> the float32 [...]."""
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def constant(like, bits: tl.constexpr):
    """A float32 given by its bits, in the shape of `like`."""
    return float_of(tl.zeros_like(like).to(tl.int32) + bits)


@triton.jit
def pow2(n):
    """Int32 -149 ... 127 -> 2^n, float32."""
    normal = (tl.maximum(n, -126) + 127) << 23
    subnormal = (tl.zeros_like(n) + 1) << (tl.minimum(n, -127) + 149)
    return float_of(tl.where(n >= -126, normal, subnormal))


@triton.jit
def divide(x, y):
    """x / y, correctly rounded; y may be a Python number."""
    return tl.div_rn(x, tl.zeros_like(x) + y)


@triton.jit
def reciprocal(y):
    """1 / y, correctly rounded; in half the instructions of a division."""
    if INTERPRETED:
        inverse = tl.div_rn(tl.zeros_like(y) + 1.0, y)
    else:
        inverse = tl.inline_asm_elementwise("rcp.rn.f32 $0, $1;", "=f,f", [y], tl.float32, True, 1)
    return inverse


@triton.jit
def quotient(x, y, by):
    """x / y, correctly rounded where no remainder underflows (docs/cuda.md). by: fl(1 / y)"""
    if INTERPRETED:  # its fma rounds twice
        result = divide(x, y)
    else:
        y, by = tl.zeros_like(x) + y, tl.zeros_like(x) + by
        near = x * by
        result = tl.fma(tl.fma(near, 0.0 - y, x), by, near)
    return result


@triton.jit
def clamp(x, low_bits: tl.constexpr, high_bits: tl.constexpr):
    """x, no NaN, between two positive float32 numbers given by their bits."""
    return tl.minimum(tl.maximum(x, constant(x, low_bits)), constant(x, high_bits))


@triton.jit
def widen(x):
    """Float32, bfloat16 or float16 -> float32."""
    if INTERPRETED and x.dtype == tl.bfloat16:  # the interpreter flushes subnormals
        wide = moved_up(x)
    else:
        wide = x.to(tl.float32)
    return wide


@triton.jit
def moved_up(x):
    """bfloat16 -> float32, by its bits."""
    return float_of(x.to(tl.int16, bitcast=True).to(tl.int32) << 16)


@triton.jit
def widen_part(x):
    """As `widen`, of scales and what goes with them.

    LLVM 22 takes float16(float32(a) * float32(b)) of a float16 a and a bfloat16 b for a product of
    float16, which loses most of b's range. It does not see through bits that are moved.
    """
    if x.dtype == tl.bfloat16:
        wide = moved_up(x)
    else:
        wide = x.to(tl.float32)
    return wide


@triton.jit
def narrow(x, dtype: tl.constexpr):
    """float32 -> dtype, to nearest even."""
    if INTERPRETED and dtype == tl.bfloat16:  # the interpreter truncates
        bits = bits_of(x)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        rounded = tl.where(x == x, rounded, 0x7FC0)
        result = rounded.to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        result = x.to(dtype)
    return result


@triton.jit
def normalized(x):
    """Positive float32 -> its biased exponent, which is below 1 for subnormals, and its 23 fraction
    bits: int32 both."""
    small = bits_of(x) < 0x00800000
    bits = bits_of(tl.where(small, x * 16777216.0, x))  # 2^24
    return (bits >> 23) - tl.where(small, 24, 0), bits & 0x7FFFFF


@triton.jit
def fma_up(a, b, c):
    """a * b + c rounded up, with subnormals, which libdevice's flushes; not in the interpreter."""
    b, c = tl.zeros_like(a) + b, tl.zeros_like(a) + c
    return tl.inline_asm_elementwise(
        "fma.rp.f32 $0, $1, $2, $3;", "=f,f,f,f", [a, b, c], tl.float32, True, 1
    )


@triton.jit
def whole_magnitude(m, negative, u, rounding: tl.constexpr):
    """Magnitudes below 2^22 -> the magnitude of the integer that each becomes (section 2).

    m: float32, at least 0; negative: bool, or 0 or 1, whether the number itself is below 0
    u: float32, of `stochastic`, a random number times 2^24
    """
    if rounding == "nearest_even":
        whole = (m + MAGIC) - MAGIC
    elif rounding == "stochastic" and not INTERPRETED:  # the next integer from |t| - u on
        near = fma_up(u, -5.9604644775390625e-08, m)
        whole = fma_up(near, 1.0, MAGIC) - MAGIC
    else:
        if INTERPRETED:
            floor = tl.floor(m)
        else:  # one addition, where the GPU's own instruction takes eight times as long
            floor = libdevice.add_rd(m, tl.zeros_like(m) + 8388608.0) - 8388608.0
        fraction = m - floor
        if rounding == "nearest_away":
            up = fraction >= 0.5
        elif rounding == "toward_zero":
            up = fraction < 0.0
        elif rounding == "down":
            up = negative & (fraction > 0.0)
        elif rounding == "up":
            up = (fraction > 0.0) & (negative == 0)
        else:
            tl.static_assert(rounding == "stochastic", "unknown rounding")
            up = u * 5.9604644775390625e-08 < fraction
        whole = floor + tl.where(up, 1.0, 0.0)
    return whole
