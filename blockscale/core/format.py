"""A number format: blocks of small elements that share a scale. A value, with one spelling."""

from dataclasses import dataclass, field, replace
from math import prod
from typing import TypeAlias

from blockscale.core.block import Block
from blockscale.core.element import Element
from blockscale.core.rounding import ROUNDINGS
from blockscale.core.scale import FloatScale, Levels, PowerOfTwo, TwoLevel

Scale: TypeAlias = "FloatScale | PowerOfTwo | TwoLevel[Format]"


@dataclass(frozen=True, repr=False)
class Format:
    """x ≈ (code - zero_point) * step of its block (docs/numerics.md, section 1).

    Raises ValueError if the parts do not fit together.

    element:  what one stored number can be
    block:    which elements share a scale
    scale:    how that scale is stored
    asym:     an integer zero point besides the scale
    span:     which codes of a signed integer are used, here of int8: "" (-127 ... 127), "full"
              (-128 too) or "half" (-128 too, and the scale is amax / 127.5, as torchao's)
    recip:    multiply by the reciprocal of the scale instead of dividing (torchao)
    rounding: one of blockscale.core.rounding.ROUNDINGS
    """

    element: Element
    block: Block
    scale: Scale
    asym: bool = False
    span: str = ""
    recip: bool = False
    rounding: str = "nearest_even"
    spelling: str = field(init=False, compare=False)  # str(self), which ops and graphs carry

    def __post_init__(self) -> None:
        object.__setattr__(self, "spelling", self._spell())
        integer = self.element.integer
        float_scale = isinstance(self.scale, FloatScale)
        if self.rounding not in ROUNDINGS:
            self._refuse(f"no rounding {self.rounding!r}; there are {', '.join(ROUNDINGS)}")
        if self.rounding != "nearest_even" and not self.element.roundings_matter:
            how = "takes the sign" if self.element.bits == 1 else "rounds in one way only"
            self._refuse(f"{self.element.name} {how}, so a rounding has no meaning")
        if self.asym and not integer:
            self._refuse("asym (a zero point) needs an integer element")
        if self.span and (not integer or not self.element.signed or self.asym):
            self._refuse(f"{self.span} needs a signed integer element without asym")
        nearest = isinstance(self.scale, PowerOfTwo) and self.scale.rule == "nearest"
        if self.span == "half" and not (float_scale or nearest):
            self._refuse("half needs an fp32, fp16 or bf16 scale, or a power of two by nearest")
        if self.recip and isinstance(self.scale, PowerOfTwo):
            self._refuse("recip changes nothing under a power-of-two scale: leave it out")
        if isinstance(self.scale, TwoLevel):
            self._check_inner(self.scale.inner)

    def _check_inner(self, inner: "Format") -> None:
        plain = Format(inner.element, inner.block, inner.scale)
        if inner != plain or str(inner.scale) != "fp32":
            self._refuse(f"the scale's own format must be plain and under fp32, not {inner}")
        if inner.element.signed and inner.element.nan_code is None:
            self._refuse(
                "a scale's element is unsigned (uintB) or a minifloat with NaN (e4m3, e5m2)"
            )
        if inner.element.bits > 8:
            self._refuse(f"a scale's element has at most 8 bits, not {inner.element.bits}")

    def _refuse(self, reason: str) -> None:
        raise ValueError(f"{self}: {reason}")

    @property
    def deterministic(self) -> "Format":
        """The same without chance: nearest even in the place of stochastic rounding."""
        return replace(self, rounding="nearest_even") if self.rounding == "stochastic" else self

    def __str__(self) -> str:
        """The one spelling, e.g. `e2m1:group32:e8m0/floor`; `parse` reads it back."""
        return self.spelling

    def _spell(self) -> str:
        options = ["asym"] * self.asym + [self.span] * bool(self.span) + ["recip"] * self.recip
        options += [self.rounding] * (self.rounding != "nearest_even")
        return ":".join([self.element.name, str(self.block), str(self.scale), *options])

    def __repr__(self) -> str:
        return f"Format('{self}')"

    @property
    def wide(self) -> bool:
        """Whether codes reach down to -2^(bits-1)."""
        return self.asym or bool(self.span)

    @property
    def fraction_bits(self) -> int:
        """f: under e8m0 the step is 2^(byte - 127 - f) (docs/numerics.md, 1.3)."""
        byte = isinstance(self.scale, PowerOfTwo) and self.scale.byte
        return self.element.fraction_bits if byte else 0

    @property
    def levels(self) -> Levels:
        """What the numerator is divided by (docs/numerics.md, 3.1)."""
        if self.asym:
            return Levels(2.0**self.element.bits - 1, self.element.bits - 1)
        return Levels(self.element.max + 0.5 * (self.span == "half"), self.element.mbits)

    @property
    def bits(self) -> int:
        """Stored bits of one code, without its share of the scale."""
        return self.element.bits

    def bits_per_element(self, shape: tuple[int, ...]) -> float:
        """Stored bits of a tensor of `shape` with its scales and zero points, per element."""
        scale_shape = self.block.scale_shape(shape)
        overhead = prod(scale_shape) * (self.scale.bits + 32 * self.asym)
        if isinstance(self.scale, TwoLevel):
            overhead += 32 * prod(self.scale.inner.block.scale_shape(scale_shape))
        return self.bits + overhead / max(prod(shape), 1)
