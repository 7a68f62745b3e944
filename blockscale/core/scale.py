# SPDX-License-Identifier: BSD-3-Clause
"""How the scale of a block is stored (docs/numerics.md, sections 1.3 and 3.3 to 3.5).

There are three kinds: a float (`FloatScale`), a power of two (`PowerOfTwo`), and the code of a
small format that has a scale of its own (`blockscale.core.scales`). Each has two
directions. `store` takes the
numerator a of a block, such as its largest magnitude, and the largest value L of the element, and
gives what is stored. `step` takes what is stored and gives the step: the float32 number that the
values of codes are multiplied by.
"""

from dataclasses import dataclass
from math import frexp
from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.core.arithmetic.precision import FLT_MAX, FLT_MIN, divide, exponent, mantissa, pow2

_SQRT2 = 0x3504F3  # the fraction bits of the float32 just below the square root of 2
_NEVER = 1 << 23
RULES = ("floor", "ceil", "rceil", "even", "tosa", "nearest")
GIVEN = "given"  # in the place of a rule: the scale comes from elsewhere and is not chosen


class Levels(NamedTuple):
    """The largest value of an element, L = M * 2^emax with M in [1, 2), and its mantissa bits."""

    value: float
    mbits: int

    @classmethod
    def of(cls, value: float) -> "Levels":
        """Those of a value with as many mantissa bits as it needs."""
        numerator = value.as_integer_ratio()[0]
        return cls(value, (numerator // (numerator & -numerator)).bit_length() - 1)

    @property
    def emax(self) -> int:
        """The exponent of L, from its bits."""
        return frexp(self.value)[1] - 1

    def threshold(self, rule: str) -> int:
        """T of docs/numerics.md, 3.4: from which mantissa on a rule takes the next exponent.

        The mantissa is that of the numerator, as `bits.mantissa` gives it: 23 bits, no leading one.
        """
        if rule in ("even", "tosa") and self.mbits > 22:
            raise ValueError(
                f"the rule {rule} needs an element whose largest value has at most 23 bits"
            )
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

    def store_signed(self, raw: Tensor) -> Tensor:
        """The same for a quotient with a sign, which the stored scale keeps; that of 0 is +."""
        size = self.store(raw.abs())
        return torch.where(raw < 0, -size, size)

    def store_any(self, value: Tensor) -> Tensor:
        """A number [...] float32 of any size and sign, such as an offset -> [...] of `dtype`."""
        high = min(self.high, float(torch.finfo(self.dtype).max))
        return value.clamp(-high, high).to(self.dtype).clamp(-high, high)

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

    rule: one of RULES, which says how the numerator becomes a power of two, or GIVEN, which says
    that it was chosen elsewhere. The byte is that of OCP MX 1.0, section 5.4.1.
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
        if self.rule == GIVEN:
            raise ValueError(
                f"the scale {self} has no rule that chooses it: pass scale=…, or name a rule "
                f"({', '.join(RULES)})"
            )
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
