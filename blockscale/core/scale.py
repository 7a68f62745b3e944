"""How the scale of a block is stored (docs/numerics.md, sections 1.3 and 3.3 to 3.5).

There are three kinds: a float (`FloatScale`), a power of two (`PowerOfTwo`), and the code of a
small format that has a scale of its own (`TwoLevel`). Each has two directions. `store` takes the
numerator a of a block, such as its largest magnitude, and the largest value L of the element, and
gives what is stored. `step` takes what is stored and gives the step: the float32 number that the
values of codes are multiplied by.
"""

from dataclasses import dataclass
from math import frexp
from typing import Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from blockscale.core.arithmetic.bits import (
    FLT_MAX,
    FLT_MIN,
    FLT_SMALLEST,
    divide,
    exponent,
    mantissa,
    pow2,
)
from blockscale.core.block import Block, Blocks
from blockscale.core.element import Element
from blockscale.core.rounding import nearest_even

_SQRT2 = 0x3504F3  # the fraction bits of the float32 just below the square root of 2
_NEVER = 1 << 23
RULES = ("floor", "ceil", "rceil", "even", "tosa", "nearest")
SHORT_INNER = ("e4m3", "e5m2")  # `e4m3` is short for `(e4m3:tensor:fp32)`


class Levels(NamedTuple):
    """The largest value of an element, L = M * 2^emax with M in [1, 2), and its mantissa bits."""

    value: float
    mbits: int

    @property
    def emax(self) -> int:
        """The exponent of L, from its bits."""
        return frexp(self.value)[1] - 1

    def threshold(self, rule: str) -> int:
        """T of docs/numerics.md, 3.4: from which mantissa on a rule takes the next exponent.

        The mantissa is that of the numerator, as `bits.mantissa` gives it: 23 bits, no leading one.
        """
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
    """Any value of a float dtype from `low` to `high`: `fp32`, `fp16`, `bf16`."""

    name: str
    dtype: torch.dtype
    low: float
    high: float

    @property
    def bits(self) -> int:
        """Stored bits of one scale."""
        return self.dtype.itemsize * 8

    @property
    def poisons(self) -> bool:
        """Whether a NaN or an infinity makes its whole block NaN: not here, it is left out."""
        return False

    def __str__(self) -> str:
        return self.name

    def store(self, raw: Tensor) -> Tensor:
        """The quotient a / L [...] float32 -> the stored scale [...] of `dtype`."""
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
    """A power of two, stored as its exponent in a byte (`e8m0`) or as a float32 (`pow2`).

    rule: one of RULES, which says how the numerator becomes a power of two. The byte is that of
    OCP MX 1.0, section 5.4.1.
    """

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
        """Whether a NaN or an infinity makes its whole block NaN: a byte has a code for NaN."""
        return self.byte

    def __str__(self) -> str:
        return f"{'e8m0' if self.byte else 'pow2'}/{self.rule}"

    def power(self, a: Tensor, levels: Levels) -> Tensor:
        """The numerator a [...] float32, above 0 -> the exponent of the step [...] int32 (3.4)."""
        if self.rule == "nearest":
            s = divide(a, levels.value)
            s = torch.where(s > 0, s, FLT_MIN)
            return exponent(s) + (mantissa(s) > _SQRT2)
        bump = mantissa(a) >= levels.threshold(self.rule)
        return exponent(a) - levels.emax + bump

    def store(self, a: Tensor, levels: Levels, fraction_bits: int) -> Tensor:
        """The numerator a [...] float32 -> the stored scale [...] of `dtype`.

        fraction_bits: the element's, which a byte makes up for (docs/numerics.md, 1.3).
        """
        zero = a == 0
        if self.rule == "nearest":
            zero = zero | (divide(a, levels.value) == 0)
        power = self.power(torch.where(zero, 1.0, a), levels)
        if self.byte:
            byte = (power + fraction_bits).clamp(-127, 127) + 127
            return torch.where(zero, 0, byte).to(torch.uint8)
        return pow2(torch.where(zero, -126, power.clamp(-126, 127)).to(torch.int32))

    def step(self, stored: Tensor, fraction_bits: int) -> Tensor:
        """The stored scale [...] -> the step [...] float32; byte 255 is NaN."""
        if not self.byte:
            return stored
        byte = stored.to(torch.int32)
        return torch.where(byte == 255, torch.nan, pow2(byte.clamp(max=254) - 127 - fraction_bits))


class InnerFormat(Protocol):
    """What a TwoLevel needs to know of the format of its scales. `Format` has it."""

    @property
    def element(self) -> Element:
        """What one stored scale can be."""

    @property
    def block(self) -> Block:
        """Which scales share an outer scale."""


Inner = TypeVar("Inner", bound=InnerFormat)


@dataclass(frozen=True)
class TwoLevel(Generic[Inner]):
    """Scales of blocks that are themselves quantized, as NVFP4's e4m3 under one float32 (3.5).

    inner: the format of the scales. The stored scales are its codes, one a byte, and they have a
    scale themselves: the outer scale, one float32 for each block of scales.
    """

    inner: Inner

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the stored scale: a byte a code, so that the scale's shape is the layout."""
        return torch.uint8

    @property
    def bits(self) -> int:
        """Stored bits of one inner scale."""
        return 8

    @property
    def poisons(self) -> bool:
        """Whether a NaN or an infinity makes its whole block NaN: if a scale's code can be NaN."""
        return self.inner.element.nan_code is not None

    def __str__(self) -> str:
        plain = str(self.inner)
        element, rest = plain.split(":", 1)
        short = rest == "tensor:fp32" and element in SHORT_INNER
        return element if short else f"({plain})"

    def ratio(self, a: Tensor, levels: Levels, poisoned: Tensor) -> tuple[Tensor, Tensor]:
        """The numerator a [...] float32 -> the scales before they are encoded, and the outer scale.

        The scales are [...] float32 in steps of the outer scale; the outer scale has one float32
        for each block of scales. poisoned: bool [...], which blocks hold a NaN or an infinity; the
        outer scale is chosen without them.
        """
        element, block = self.inner.element, self.inner.block
        largest = Blocks(torch.where(poisoned, 0.0, a), block).range()[1]
        # one division by the product, as torchao does (448 * 6 = 2688)
        outer = divide(largest, levels.value * element.max).clamp(FLT_MIN, FLT_MAX)
        return divide(a, levels.value) / block.expand(outer, a.shape), outer

    def store(self, a: Tensor, levels: Levels, poisoned: Tensor) -> tuple[Tensor, Tensor]:
        """The numerator a [...] float32 -> the stored scale [...], codes, and the outer scale."""
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
        """The stored scale [...], codes -> their values [...] float32, without the outer scale."""
        return self.inner.element.decode(codes)

    def step(self, codes: Tensor, outer: Tensor) -> Tensor:
        """The stored scale [...] and the outer scale -> the step [...] float32.

        It is never 0 and never infinite.
        """
        product = self.inner.block.expand(outer, codes.shape) * self.values(codes)
        return product.clamp(FLT_SMALLEST, FLT_MAX)
