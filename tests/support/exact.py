# SPDX-License-Identifier: BSD-3-Clause
"""The arithmetic of docs/numerics.md in exact rationals: fl(.), rounding, Philox, packing, blocks.

Written from that page alone; `oracle.py` builds formats from it. Numbers are Python floats that
hold float32 values (so -0.0, inf and nan are themselves); every operation that the page writes
fl(.) is one exact Fraction rounded once. Tensors are flat row-major lists beside their shape.
"""

import itertools
import math
import re
from fractions import Fraction

FLT_MAX = float.fromhex("0x1.fffffep127")
FLT_MIN = 2.0**-126
PRECISION = {
    "fp32": (24, -126, 127),
    "bf16": (8, -126, 127),
    "fp16": (11, -14, 15),
}  # bits, smallest, largest E
SCALE_RANGE = {
    "fp32": (FLT_MIN, FLT_MAX),
    "bf16": (FLT_MIN, float.fromhex("0x1.fep127")),
    "fp16": (2.0**-24, 65504.0),
}
SEVEN_TENTHS = float.fromhex("0x1.666666p-1")  # the float32 0x3F333333
RULES = ("floor", "ceil", "rceil", "even", "tosa", "nearest")
ROUNDINGS = ("nearest_even", "nearest_away", "toward_zero", "down", "up", "stochastic")


def pow2(n: int) -> Fraction:
    return Fraction(2) ** n


def clamp(v, low, high):
    return min(max(v, low), high)


def exponent(v) -> int:
    """E(v): the true binary exponent of v > 0."""
    v = Fraction(v)
    e = v.numerator.bit_length() - v.denominator.bit_length()
    return e if v >= pow2(e) else e - 1


def mant(v) -> Fraction:
    """The 23-bit fraction field of the normalized value."""
    return (Fraction(v) / pow2(exponent(v)) - 1) * 2**23


def nearest(v, to: str = "fp32") -> float:
    """The rational v in an IEEE format, nearest even."""
    if v == 0 or not math.isfinite(v):
        return float(v)
    bits, low, high = PRECISION[to]
    v = Fraction(v)
    unit = pow2(max(exponent(abs(v)), low) - bits + 1)
    r = round(abs(v) / unit) * unit  # Fraction rounds halves to even
    r = math.inf if r >= pow2(high + 1) else float(r)
    return -r if v < 0 else r


def add(a: float, b: float) -> float:
    if not (math.isfinite(a) and math.isfinite(b)) or a == -b:
        return a + b
    return nearest(Fraction(a) + Fraction(b))


def multiply(a: float, b: float) -> float:
    if not (math.isfinite(a) and math.isfinite(b)) or 0 in (a, b):
        return a * b
    return nearest(Fraction(a) * Fraction(b))


def divide(a: float, b: float) -> float:
    if math.isnan(a) or math.isnan(b) or (math.isinf(a) and math.isinf(b)) or (a == 0 and b == 0):
        return math.nan
    sign = math.copysign(1.0, a) * math.copysign(1.0, b)
    if math.isinf(a) or b == 0:
        return sign * math.inf
    if math.isinf(b) or a == 0:
        return sign * 0.0
    return nearest(Fraction(a) / Fraction(b))


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 (Salmon et al., SC 2011)."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 % 2**32, (p0 >> 32) ^ c3 ^ k1, p0 % 2**32
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return [c0, c1, c2, c3]


def uniform(seed: int, i: int) -> Fraction:
    word = philox([(i >> 2) % 2**32, i >> 34, 0, 0], [seed % 2**32, (seed >> 32) % 2**32])[i & 3]
    return Fraction(word >> 8, 2**24)


def rounded(t: Fraction, mode: str, u: Fraction | None = None) -> int:
    """R(t) of section 2."""
    whole = math.floor(abs(t))
    part = abs(t) - whole
    more = {
        "nearest_even": part > Fraction(1, 2) or (part == Fraction(1, 2) and whole % 2 == 1),
        "nearest_away": part >= Fraction(1, 2),
        "toward_zero": False,
        "down": t < 0 and part > 0,
        "up": t > 0 and part > 0,
        "stochastic": u is not None and u < part,
    }[mode]
    return (-1 if t < 0 else 1) * (whole + more)


def pack_row(codes: list[int], bits: int) -> list[int]:
    """Section 6: a little-endian bit stream, as bytes."""
    stream = [
        (code >> j) & 1 for code in codes for j in range(bits)
    ]  # Python's >> is two's complement
    stream += [0] * (-len(stream) % 8)
    return [sum(stream[i + j] << j for j in range(8)) for i in range(0, len(stream), 8)]


def layout(block: str, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Block sizes and the stored scale's shape; no sizes for blocks over the flattened tensor."""
    if found := re.fullmatch(r"flat(\d+)(@0)?", block):
        return (), (*[1] * (len(shape) - 1), -(-math.prod(shape) // int(found[1])))
    rank, whole = len(shape), [False] * len(shape)
    sizes = [1] * rank
    if block == "tensor":
        whole = [True] * rank
    elif found := re.fullmatch(r"channel(-?\d+)", block):
        whole = [i != int(found[1]) % rank for i in range(rank)]
    elif block == "token":
        whole[-1] = True
    elif found := re.fullmatch(r"group(\d+)(?:@(-?\d+))?", block):
        sizes[int(found[2] or -1) % rank if rank else 0] = int(found[1])
    elif block.startswith("block"):
        named = block.removeprefix("block").split("x")
        sizes[rank - len(named) :] = [1 if n == "*" else int(n) for n in named]
        whole[rank - len(named) :] = [n == "*" for n in named]
    else:
        sizes[-2:] = [int(n) for n in re.fullmatch(r"tile(\d+)x(\d+)", block).groups()]
    sizes = [max(n, 1) if w else b for n, w, b in zip(shape, whole, sizes, strict=True)]
    return tuple(sizes), tuple(
        1 if w else -(-n // b) for n, w, b in zip(shape, whole, sizes, strict=True)
    )


def block_of(block: str, shape: tuple[int, ...]) -> list[int]:
    """For every element, row-major, the flat index of its block in the stored scale."""
    sizes, counts = layout(block, shape)
    if block.startswith("flat"):
        size = int(block.removeprefix("flat").removesuffix("@0"))
        strided = block.endswith("@0")
        return [i % counts[-1] if strided else i // size for i in range(math.prod(shape))]
    owners = []
    for index in itertools.product(*map(range, shape)):
        flat = 0
        for i, b, count in zip(index, sizes, counts, strict=True):
            flat = flat * count + i // b
        owners.append(flat)
    return owners


def mean_magnitude(block: list[float], twn: bool) -> float:
    """3.2: the mean of |x| (XNOR-Net), or of those above 0.7 of it (TWN); in integers."""
    sizes = [abs(v) for v in block if math.isfinite(v)]
    largest = max(sizes, default=0.0)
    if largest == 0:
        return 0.0
    e = max(exponent(largest), -126)

    def of(chosen):
        total = sum(math.floor(Fraction(v) * pow2(30 - e)) for v in chosen)
        return multiply(multiply(divide(nearest(total), nearest(len(chosen))), 2.0**-30), 2.0**e)

    mean = of(sizes)
    if not twn:
        return mean
    above = [v for v in sizes if v > multiply(SEVEN_TENTHS, mean)]
    return of(above) if above else 0.0  # the page does not say; only A = 2^-149 gets here
