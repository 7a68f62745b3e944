# SPDX-License-Identifier: BSD-3-Clause
"""Small floating-point numbers: `e4m3`, `e2m1`, any exponent and mantissa up to 8 bits; `ue5m3` and
others without a sign, which scales of blocks are stored as."""

import math
import re
from dataclasses import dataclass

import torch
from torch import Tensor

from blockscale.core.element import Element, ElementNumbers
from blockscale.core.rounding import Round, finite

SPELLINGS = (
    "e4m3, e5m2, e3m2, e2m3, e2m1 and any eXmY or eXmYrN of 3 to 8 bits; ue5m3, ue4m3 and any "
    "ueXmY or ueXmYrN, without a sign"
)

SIGNED = (
    *(f"e{x}m{y}" for x in range(1, 8) for y in range(7) if 3 <= 1 + x + y <= 8),
    *("e4m3r0", "e4m3r2", "e4m3r8", "e5m2r0", "e5m2r1", "e2m1r1", "e3m0r1", "e3m4r16", "e1m6r3"),
)
UNSIGNED = (
    *("ue5m3", "ue4m3", "ue4m4", "ue6m2", "ue7m1", "ue7m0", "ue1m7", "ue1m2", "ue2m1", "ue3m2"),
    *("ue5m3r0", "ue5m3r8", "ue2m2r3"),
)
EXAMPLES = (*SIGNED, *UNSIGNED)

# Codes at the top of each sign that hold NaN or infinity (OCP OFP8 1.0, section 5).
_RESERVED = {(4, 3): 1, (5, 2): 4}
_RESERVED_UNSIGNED = 1  # where no other number is stated: the code of all ones is NaN


@dataclass(frozen=True)
class Minifloat(Element):
    """Sign, exponent, mantissa: ±2^(e - bias) * 1.m, subnormals where e = 0.

    The `reserved` largest magnitude codes are not numbers. `infinity` is the magnitude code
    that reads as infinity, if any; it is never written, because encoding saturates.
    """

    exponent_bits: int
    mantissa_bits: int
    reserved: int = 0

    @property
    def name(self) -> str:
        plain = f"e{self.exponent_bits}m{self.mantissa_bits}"
        return plain if self.reserved == _default_reserved(self) else f"{plain}r{self.reserved}"

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self) -> int:
        """What is subtracted from the exponent field."""
        return int(2 ** (self.exponent_bits - 1)) - 1

    @property
    def mbits(self) -> int:
        return self.mantissa_bits

    @property
    def max(self) -> float:
        return self.magnitude_of(self.max_code)

    @property
    def smallest(self) -> float:
        return self.magnitude_of(1)

    @property
    def smallest_normal(self) -> float:
        return math.ldexp(1.0, 1 - self.bias)

    @property
    def max_code(self) -> int:
        """The magnitude code of the largest value."""
        return int(2 ** (self.bits - 1)) - self.reserved - 1

    @property
    def nan_code(self) -> int | None:
        return 2 ** (self.bits - 1) - 1 if self.reserved else None

    def magnitude_of(self, code: int) -> float:
        """The value of magnitude code `code`, exact."""
        field, fraction = divmod(code, 2**self.mantissa_bits)
        hidden = 2**self.mantissa_bits if field else 0  # the 1 in 1.m, absent in subnormals
        return math.ldexp(hidden + fraction, max(field, 1) - self.bias - self.mantissa_bits)

    @property
    def infinity(self) -> int | None:
        """The magnitude code that other encoders write for infinity (OCP OFP8 1.0, table 1)."""
        parts = (self.exponent_bits, self.mantissa_bits, self.reserved)
        return 0x7C if parts == (5, 2, 4) else None

    def values(self) -> list[float]:
        """The value of every code, in the order of the codes."""
        positive = [self.magnitude_of(code) for code in range(self.max_code + 1)]
        positive += [math.nan] * self.reserved
        if self.infinity is not None:
            positive[self.infinity] = math.inf
        return positive + [-value for value in positive]

    def _steps(self, y: Tensor, rounding: Round) -> tuple[Tensor, Tensor]:
        """Finite y -> the exponent of its binade, and y rounded to steps of that binade."""
        # A float32 subnormal has exponent field 0, which the clamp lifts: 1 - bias >= -126.
        power = ((y.abs().view(torch.int32) >> 23) - 127).clamp(min=1 - self.bias)
        step = ((power + (127 - self.mantissa_bits)) << 23).view(torch.float32)
        return power, rounding(y / step)  # exact before rounding: step is a power of two

    def encode(self, y: Tensor, rounding: Round, zero_point: Tensor | None, wide: bool) -> Tensor:
        del zero_point, wide
        nan = y.isnan()
        y = y.nan_to_num(nan=0.0).clamp(-self.max, self.max)
        power, steps = self._steps(y, rounding)
        code = ((power + (self.bias - 1)) << self.mantissa_bits) + steps.abs().to(torch.int32)
        code = code | (y.signbit().to(torch.int32) << (self.bits - 1))
        return torch.where(nan, self.nan_code or 0, code).to(torch.uint8)

    def decode(self, codes: Tensor) -> Tensor:
        codes, sign = codes.to(torch.int32), self.bits - 1
        code = codes & (2**sign - 1)
        normal = (code << (23 - self.mantissa_bits)) + ((127 - self.bias) << 23)
        subnormal = code.to(torch.float32) * self.smallest  # exact: code has few bits
        size = torch.where(code < 2**self.mantissa_bits, subnormal, normal.view(torch.float32))
        size = size.masked_fill(code > self.max_code, math.nan)
        if self.infinity is not None:
            size = size.masked_fill(code == self.infinity, math.inf)
        return (size.view(torch.int32) | (codes >> sign << 31)).view(torch.float32)

    def in_range(self, y: Tensor, rounding: Round, zero_point: Tensor | None, wide: bool) -> Tensor:
        del zero_point, wide
        power, steps = self._steps(finite(y), rounding)
        # compare in steps: the largest value in steps of its own binade, larger binades are out
        top = math.frexp(self.max)[1] - 1
        largest = math.ldexp(self.max, self.mantissa_bits - top)
        return y.isfinite() & ((power < top) | ((power == top) & (steps.abs() <= largest)))

    def numbers(self, wide: bool) -> ElementNumbers:
        del wide
        return ElementNumbers(
            family="minifloat",
            bits=self.bits,
            signed=self.signed,
            low=-self.max,
            high=self.max,
            smallest_normal=self.smallest_normal,
            statistic="magnitude",
            mbits=self.mbits,
            bias=self.bias,
            max_code=self.max_code,
            nan=-1 if self.nan_code is None else self.nan_code,
            infinity=-1 if self.infinity is None else self.infinity,
        )


def _default_reserved(element: Minifloat) -> int:
    return _RESERVED.get((element.exponent_bits, element.mantissa_bits), 0)


@dataclass(frozen=True)
class UnsignedMinifloat(Element):
    """Exponent and mantissa, no sign: the magnitudes of the minifloat with one bit more.

    The `reserved` largest codes are not numbers; the largest of them is NaN (numerics.md, 1.1).
    """

    exponent_bits: int
    mantissa_bits: int
    reserved: int = _RESERVED_UNSIGNED

    @property
    def magnitudes(self) -> Minifloat:
        """The element with a sign, whose codes without it are the same numbers."""
        return Minifloat(self.exponent_bits, self.mantissa_bits, self.reserved)

    @property
    def name(self) -> str:
        plain = f"ue{self.exponent_bits}m{self.mantissa_bits}"
        return plain if self.reserved == _RESERVED_UNSIGNED else f"{plain}r{self.reserved}"

    @property
    def bits(self) -> int:
        return self.exponent_bits + self.mantissa_bits

    @property
    def mbits(self) -> int:
        return self.mantissa_bits

    @property
    def max(self) -> float:
        return self.magnitudes.max

    @property
    def smallest(self) -> float:
        return self.magnitudes.smallest

    @property
    def smallest_normal(self) -> float:
        return self.magnitudes.smallest_normal

    @property
    def signed(self) -> bool:
        return False

    @property
    def nan_code(self) -> int | None:
        return self.magnitudes.nan_code

    def encode(self, y: Tensor, rounding: Round, zero_point: Tensor | None, wide: bool) -> Tensor:
        y = y.clamp(min=0.0).abs()  # of 0 and -0 either may be the larger; NaN stays
        return self.magnitudes.encode(y, rounding, zero_point, wide)

    def decode(self, codes: Tensor) -> Tensor:
        return self.magnitudes.decode(codes)

    def in_range(self, y: Tensor, rounding: Round, zero_point: Tensor | None, wide: bool) -> Tensor:
        steps = rounding(y.clamp(min=-1.0) / self.smallest)  # exact: it is a power of two
        inside = self.magnitudes.in_range(y, rounding, zero_point, wide)
        return inside & ((y >= 0) | (steps >= 0))


def read(name: str) -> Element | None:
    """`eXmY` with OCP's reserved codes, or `eXmYrN` with N of them; `ueXmY` and `ueXmYrN`."""
    if name.startswith("u"):
        return _read_unsigned(name)
    match = re.fullmatch(r"e([1-7])m([0-6])(?:r([0-9]{1,9}))?", name)
    if match is None:
        return None
    plain = Minifloat(int(match[1]), int(match[2]))
    reserved = _default_reserved(plain) if match[3] is None else int(match[3])
    element = Minifloat(plain.exponent_bits, plain.mantissa_bits, reserved)
    one_normal = element.max_code >= 2**plain.mantissa_bits
    return element if 3 <= plain.bits <= 8 and one_normal else None


def _read_unsigned(name: str) -> Element | None:
    """`ueXmY`, in which all ones are NaN, or `ueXmYrN` with the N largest codes reserved."""
    match = re.fullmatch(r"ue([1-7])m([0-7])(?:r([0-9]{1,9}))?", name)
    if match is None:
        return None
    reserved = _RESERVED_UNSIGNED if match[3] is None else int(match[3])
    element = UnsignedMinifloat(int(match[1]), int(match[2]), reserved)
    one_normal = element.magnitudes.max_code >= 2**element.mantissa_bits
    return element if 3 <= element.bits <= 8 and one_normal else None
