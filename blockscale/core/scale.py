"""How the one number per block is stored (docs/numerics.md, sections 1.3 and 3.3 to 3.5).

A scale turns a block's numerator a and the element's levels L into something stored, and what is
stored into a step: the distance between neighbouring codes of an integer element.
"""

from dataclasses import dataclass
from math import frexp
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from blockscale.core.bits import FLT_MAX, FLT_MIN, FLT_SMALLEST, divide, exponent, mantissa, pow2
from blockscale.core.block import Blocks
from blockscale.core.rounding import nearest_even

if TYPE_CHECKING:
    from blockscale.core.format import Format

_SQRT2 = 0x3504F3  # the fraction bits of the float32 just below the square root of 2
_NEVER = 1 << 23
RULES = ("floor", "ceil", "rceil", "even", "tosa", "nearest")


class Levels(NamedTuple):
    """The largest value of what is stored, L = M * 2^emax, and its mantissa bits."""

    value: float
    mbits: int

    @property
    def emax(self) -> int:
        """The exponent of L, from its bits."""
        return frexp(self.value)[1] - 1

    def threshold(self, rule: str) -> int:
        """T of docs/numerics.md, 3.4: mantissas of at least T / 2^23 take the next exponent."""
        significand = int(self.value * 2**self.mbits / 2**self.emax)  # M in steps of its last bit
        if rule == "floor":
            return _NEVER
        if rule == "ceil":
            return 1
        if rule == "rceil":
            return int((self.value / 2**self.emax - 1) * 2**23) + 1
        if rule == "even":
            return 2**23 - int(2 ** (22 - self.mbits))
        assert rule == "tosa", rule
        # max + ½ ulp still rounds to max if max is even, because ties go to even
        return (2 * significand + 1) * int(2 ** (22 - self.mbits)) - 2**23 + (significand % 2 == 0)


@dataclass(frozen=True)
class FloatScale:
    """Any value of a float dtype: `fp32`, `fp16`, `bf16`."""

    name: str
    dtype: torch.dtype
    low: float
    high: float

    bits = property(lambda self: self.dtype.itemsize * 8)
    poisons = False  # a non-finite value leaves the range alone

    def __str__(self) -> str:
        return self.name

    def store(self, raw: Tensor) -> Tensor:
        """Quotient a / L [...] float32 -> stored scale [...]."""
        return raw.to(self.dtype).clamp(self.low, self.high)

    def step(self, stored: Tensor) -> Tensor:
        """Stored scale [...] -> step [...] float32."""
        return stored.to(torch.float32)


FLOAT_SCALES = {
    "fp32": FloatScale("fp32", torch.float32, FLT_MIN, FLT_MAX),
    "fp16": FloatScale("fp16", torch.float16, 2.0**-24, 65504.0),
    "bf16": FloatScale("bf16", torch.bfloat16, FLT_MIN, (2.0 - 2.0**-7) * 2.0**127),
}


@dataclass(frozen=True)
class PowerOfTwo:
    """Only powers of two: a byte (`e8m0`, OCP MX 1.0, section 5.4.1) or a float32 (`pow2`)."""

    rule: str
    byte: bool

    @property
    def bits(self) -> int:
        """Stored bits of one scale."""
        return 8 if self.byte else 32

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the stored scale."""
        return torch.uint8 if self.byte else torch.float32

    @property
    def poisons(self) -> bool:
        """Whether a non-finite value makes its whole block NaN."""
        return self.byte

    def __str__(self) -> str:
        return f"{'e8m0' if self.byte else 'pow2'}/{self.rule}"

    def power(self, a: Tensor, levels: Levels) -> Tensor:
        """Numerator a [...] > 0 float32 -> the step's exponent, one integer rule for all (3.4)."""
        if self.rule == "nearest":
            s = divide(a, levels.value)
            s = torch.where(s > 0, s, FLT_MIN)
            return exponent(s) + (mantissa(s) > _SQRT2)
        bump = mantissa(a) >= levels.threshold(self.rule)
        return exponent(a) - levels.emax + bump

    def store(self, a: Tensor, levels: Levels, fraction_bits: int) -> Tensor:
        """Numerator a [...] float32 -> stored scale [...]."""
        zero = a == 0
        if self.rule == "nearest":
            zero = zero | (divide(a, levels.value) == 0)
        power = self.power(torch.where(zero, 1.0, a), levels)
        if self.byte:
            byte = (power + fraction_bits).clamp(-127, 127) + 127
            return torch.where(zero, 0, byte).to(torch.uint8)
        return pow2(torch.where(zero, -126, power.clamp(-126, 127)).to(torch.int32))

    def step(self, stored: Tensor, fraction_bits: int) -> Tensor:
        """Stored scale [...] -> step [...] float32; byte 255 is NaN."""
        if not self.byte:
            return stored
        byte = stored.to(torch.int32)
        return torch.where(byte == 255, torch.nan, pow2(byte.clamp(max=254) - 127 - fraction_bits))


@dataclass(frozen=True)
class TwoLevel:
    """Block scales that are themselves quantized, e.g. NVFP4's e4m3 under one float32 (3.5)."""

    inner: "Format"

    dtype = torch.uint8  # one code a byte: the scale's shape stays the layout

    @property
    def bits(self) -> int:
        """Stored bits of one inner scale."""
        return 8

    @property
    def poisons(self) -> bool:
        """Whether a non-finite value makes its whole block NaN."""
        return self.inner.element.nan_code is not None

    def __str__(self) -> str:
        plain = str(self.inner)
        element, rest = plain.split(":", 1)
        short = rest == "tensor:fp32" and element in ("e4m3", "e5m2")
        return element if short else f"({plain})"

    def ratio(self, a: Tensor, levels: Levels, poisoned: Tensor) -> tuple[Tensor, Tensor]:
        """Numerator a [...] -> what the inner codes must say [...], and the outer scale."""
        element, block = self.inner.element, self.inner.block
        largest = Blocks(torch.where(poisoned, 0.0, a), block).range()[1]
        # one division by the product, as torchao does (448 * 6 = 2688)
        outer = divide(largest, levels.value * element.max).clamp(FLT_MIN, FLT_MAX)
        return divide(a, levels.value) / block.expand(outer, a.shape), outer

    def store(self, a: Tensor, levels: Levels, poisoned: Tensor) -> tuple[Tensor, Tensor]:
        """Numerator a [...] -> inner codes [...] and outer scale."""
        ratio, outer = self.ratio(a, levels, poisoned)
        return self.encode(ratio), outer

    def encode(self, ratio: Tensor) -> Tensor:
        """Block scales in units of their outer scale [...] float32 -> inner codes [...]."""
        element = self.inner.element
        ratio = ratio.clamp(element.smallest_normal, element.max)
        return element.encode(ratio, nearest_even, None, False)

    def poison(self, codes: Tensor, poisoned: Tensor) -> Tensor:
        """Inner codes [...] -> the NaN code where a block is poisoned, if there is such a code."""
        nan_code = self.inner.element.nan_code
        return codes if nan_code is None else torch.where(poisoned, nan_code, codes)

    def values(self, codes: Tensor) -> Tensor:
        """Inner codes [...] -> their values [...] float32."""
        return self.inner.element.decode(codes)

    def step(self, codes: Tensor, outer: Tensor) -> Tensor:
        """Inner codes [...] and outer scale -> step [...] float32, never 0 and never infinite."""
        product = self.inner.block.expand(outer, codes.shape) * self.values(codes)
        return product.clamp(FLT_SMALLEST, FLT_MAX)


Scale = FloatScale | PowerOfTwo | TwoLevel
