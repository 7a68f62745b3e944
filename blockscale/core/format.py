# SPDX-License-Identifier: BSD-3-Clause
"""A number format: blocks of small elements that share a scale. A value, with one spelling."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TypeAlias

import torch

from blockscale.core.block import Block
from blockscale.core.element import Element
from blockscale.core.pack import packed_dtype, packed_size
from blockscale.core.rounding import ROUNDINGS
from blockscale.core.scale import FLOAT_SCALES, GIVEN, FloatScale, Levels, PowerOfTwo
from blockscale.core.scales import FOUR_SIX, CodeScale, Offset, TwoLevel
from blockscale.core.untrusted import QUOTED, shown

Scale: TypeAlias = "FloatScale | PowerOfTwo | CodeScale | TwoLevel[Format]"


@dataclass(frozen=True, repr=False)
class Format:
    """x ≈ (code - zero_point) * step of its block (docs/numerics.md, section 1).

    Raises ValueError if the parts do not fit together.

    element:  what one stored number can be
    block:    which elements share a scale
    scale:    how that scale is stored
    asym:     a zero point besides the scale, an integer or a number of the type `zero`
    span:     which codes of a signed integer are used, here of int8: "" (-127 ... 127), "full"
              (-128 too), "half" (-128 too, and the scale is amax / 127.5, as torchao's) or
              "signed" (-128 too, which is the code of the largest magnitude: the scale has a sign)
    recip:    multiply by the reciprocal of the scale instead of dividing (torchao)
    rounding: one of blockscale.core.rounding.ROUNDINGS
    zero:     the type of a zero point that is no integer; None for int32
    offset:   a number added to the values of each block: x ≈ code * step + offset
    """

    element: Element
    block: Block
    scale: Scale
    asym: bool = False
    span: str = ""
    recip: bool = False
    rounding: str = "nearest_even"
    zero: FloatScale | None = None
    offset: "Offset[Format] | None" = None
    spelling: str = field(init=False, compare=False)  # str(self), which ops and graphs carry

    def __post_init__(self) -> None:
        object.__setattr__(self, "spelling", self._spell())
        integer = self.element.integer
        if self.rounding not in ROUNDINGS:
            self._refuse(f"unknown rounding {self.rounding!r}; choose from {', '.join(ROUNDINGS)}")
        if self.rounding != "nearest_even" and not self.element.roundings_matter:
            how = "takes the sign" if self.element.bits == 1 else "rounds in one way only"
            self._refuse(f"{self.element.name} {how}, so it takes no rounding: leave that out")
        if self.asym and not integer:
            self._refuse("asym (a zero point) needs an integer element")
        if self.zero is not None and not self.asym:
            self._refuse("a type of zero points needs asym")
        self._check_span()
        if self.recip and isinstance(self.scale, PowerOfTwo):
            self._refuse("recip changes nothing under a power-of-two scale: leave it out")
        if isinstance(self.scale, TwoLevel):
            self._check_inner("the scale", self.scale.inner)
            fits = self.element.name == "e2m1" and self.scale.inner.element.name == "e4m3"
            if self.scale.compares and not (fits and self.offset is None):
                self._refuse(f"{FOUR_SIX} needs e2m1 under scales in e4m3, without an offset")
        if self.offset is not None:
            self._check_offset(self.offset)
        if self.element.by_sign:
            self._check_by_sign()

    def _check_by_sign(self) -> None:
        """Refuse scales whose sign cannot say which grid a block has, or says something else."""
        scale = self.scale
        inner = scale.inner if isinstance(scale, TwoLevel) else None
        has_sign = inner.element.signed if inner else isinstance(scale, FloatScale)
        if not has_sign or (isinstance(scale, TwoLevel) and scale.compares):
            self._refuse(
                f"{self.element.name} needs scales with a sign, which says what a block's grid is: "
                "fp32, fp16, bf16, e4m3 or another signed format, without a rule"
            )
        if self.offset is not None or (inner is not None and inner.offset is not None):
            self._refuse(f"{self.element.name} takes no offset: leave that out")

    def _check_span(self) -> None:
        integer, float_scale = self.element.integer, isinstance(self.scale, FloatScale)
        if self.span and (not integer or not self.element.signed or self.asym):
            self._refuse(f"{self.span} needs a signed integer element without asym")
        nearest = isinstance(self.scale, PowerOfTwo) and self.scale.rule == "nearest"
        if self.span == "half" and not (float_scale or nearest):
            self._refuse("half needs an fp32, fp16 or bf16 scale, or a power of two by nearest")
        if self.span == "signed" and not float_scale:
            self._refuse("signed needs an fp32, fp16 or bf16 scale")

    def _check_inner(self, of: str, inner: "Format") -> None:
        """Refuse a format that cannot be that of scales or offsets."""
        plain = Format(inner.element, inner.block, inner.scale, offset=inner.offset)
        if inner != plain or not isinstance(inner.scale, FloatScale):
            self._refuse(
                f"{of}'s own format must be plain with an fp32, fp16 or bf16 scale, got {inner}"
            )
        if not inner.element.uses_range:
            self._refuse(f"{of}'s element cannot be {inner.element.name}, whose scale is a mean")
        if inner.element.learned:
            self._refuse(f"{of}'s element cannot be {inner.element.name}, which needs a table")
        if inner.element.bits > 8:
            self._refuse(f"{of}'s element may have at most 8 bits, got {inner.element.bits}")
        if inner.offset is not None and (inner.offset.inner or of != "the scale"):
            self._refuse(f"{of}'s own format cannot have an offset, got {inner.offset}")

    def _check_offset(self, offset: "Offset[Format]") -> None:
        if self.asym or self.span:
            self._refuse(
                "an offset replaces the zero point: leave out asym, and half, full and signed"
            )
        if not self.element.uses_range:
            self._refuse(
                f"{self.element.name} has means for scales, so it takes no offset: leave that out"
            )
        if offset.inner is not None:
            self._check_inner("the offset", offset.inner)

    def _refuse(self, reason: str) -> None:
        raise ValueError(f"{shown(self.spelling, 2 * QUOTED)}: {reason}")

    @property
    def deterministic(self) -> "Format":
        """The same without chance: nearest even in the place of stochastic rounding."""
        return replace(self, rounding="nearest_even") if self.rounding == "stochastic" else self

    def __str__(self) -> str:
        """The one spelling, e.g. `e2m1:group32:e8m0/floor`; `parse` reads it back."""
        return self.spelling

    def _spell(self) -> str:
        options = [f"asym({self.zero})" if self.zero else "asym"] * self.asym
        options += [self.span] * bool(self.span) + ["recip"] * self.recip
        if self.offset is not None:
            same = self.offset.block is None and self.offset.type == self.own_type
            options.append("offset" if same else str(self.offset))
        options += [self.rounding] * (self.rounding != "nearest_even")
        return ":".join([self.element.name, str(self.block), str(self.scale), *options])

    def __repr__(self) -> str:
        return f"Format('{self}')"

    @property
    def own_type(self) -> FloatScale:
        """The type of offsets where none is named: that of a float scale, else fp32."""
        return self.scale if isinstance(self.scale, FloatScale) else FLOAT_SCALES["fp32"]

    @property
    def wide(self) -> bool:
        """Whether codes reach down to -2^(bits-1)."""
        return self.asym or bool(self.span) or self.offset is not None

    @property
    def two_sided(self) -> bool:
        """Whether a float scale has a divisor for either end of a range (docs/numerics.md, 3.1)."""
        if self.asym or self.offset is not None:
            return False
        low, high = self.element.limits(False)
        return self.span == "full" or (self.element.signed and low != -high)

    @property
    def parts(self) -> tuple[str, ...]:
        """What is stored beside codes: names of QParams' fields, in their order."""
        scale, offset = self.scale, self.offset
        two = isinstance(scale, TwoLevel)
        there = {
            "scale": True,
            "outer": two,
            "zero_point": self.asym,
            "offset": offset is not None,
            "offset_outer": offset is not None and offset.inner is not None,
            "scale_offset": isinstance(scale, TwoLevel) and scale.inner.offset is not None,
            "book": self.element.learned,
        }
        return tuple(name for name, has in there.items() if has)

    @property
    def unchosen(self) -> str | None:
        """Why scales or offsets of this format are given and not chosen from a tensor, or None."""
        scale, offset = self.scale, self.offset
        if isinstance(scale, PowerOfTwo) and scale.rule == GIVEN:
            return f"its scale {scale} must be supplied"
        if isinstance(scale, TwoLevel) and scale.given:
            return f"its outer scale ({scale}) must be supplied"
        if isinstance(scale, TwoLevel) and scale.inner.offset is not None:
            return "the offset of its scales must be supplied"
        if offset is not None and offset.block is not None:
            return f"its {offset}, which blocks share, must be supplied"
        return None

    @property
    def gives_outer(self) -> bool:
        """Whether the outer scale of two levels is given, and inner ones chosen beside it."""
        return isinstance(self.scale, TwoLevel) and self.scale.given

    @property
    def choosing(self) -> "Format":
        """The same with an outer scale that is chosen: what its codes and scales mean is equal."""
        if not isinstance(self.scale, TwoLevel) or not self.scale.given:
            return self
        return replace(self, scale=replace(self.scale, given=False))

    @property
    def compares(self) -> bool:
        """Whether the numbers of a block decide about its scale, and not its range alone: which of
        two scales it gets, or of which of two grids its codes are."""
        rule = isinstance(self.scale, TwoLevel) and self.scale.compares
        return rule or self.element.by_sign

    @property
    def plain(self) -> "Format":
        """The same without a rule by which blocks compare scales; what is stored means the same."""
        if not isinstance(self.scale, TwoLevel) or not self.scale.compares:
            return self
        return replace(self, scale=self.scale.plain)

    @property
    def fraction_bits(self) -> int:
        """f: under e8m0 the step is 2^(byte - 127 - f) (docs/numerics.md, 1.3)."""
        byte = isinstance(self.scale, PowerOfTwo) and self.scale.byte
        return self.element.fraction_bits if byte else 0

    @property
    def levels(self) -> Levels:
        """What the numerator is divided by (docs/numerics.md, 3.1)."""
        if self.asym or self.offset is not None:
            low, high = self.element.limits(self.wide)
            return Levels.of(high - low)
        return Levels(self.element.max + 0.5 * (self.span == "half"), self.element.mbits)

    @property
    def bits(self) -> int:
        """Stored bits of one code, without its share of the scale."""
        return self.element.bits

    def stored(self, shape: Sequence[int]) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """{part: (dtype, shape)} of what stands beside the codes of a tensor of `shape`.

        Raises ValueError if a block does not fit the shape.
        """
        scale, offset = self.scale, self.offset
        blocks = self.block.scale_shape(shape)
        there = {"scale": (scale.dtype, blocks)}
        if isinstance(scale, TwoLevel):
            inner = scale.inner
            there["outer"] = inner.scale.dtype, inner.block.scale_shape(blocks)
            if inner.offset is not None:
                own = inner.offset.block or inner.block
                there["scale_offset"] = inner.offset.dtype, own.scale_shape(blocks)
        if self.asym:
            there["zero_point"] = self.zero.dtype if self.zero else torch.int32, blocks
        if offset is not None:
            own_blocks = (offset.block or self.block).scale_shape(shape)
            there["offset"] = offset.dtype, own_blocks
            if (levels := offset.inner) is not None:
                outer = levels.block.scale_shape(own_blocks)
                there["offset_outer"] = levels.scale.dtype, outer
        there["book"] = torch.float32, (2**self.bits,)
        return {part: there[part] for part in self.parts}

    def nbytes(self, shape: Sequence[int]) -> int:
        """Bytes of a tensor of `shape` as stored: packed codes and what stands beside them."""
        parts = (self.packed(shape), *self.stored(shape).values())
        return sum(prod(own) * dtype.itemsize for dtype, own in parts)

    def packed(self, shape: Sequence[int]) -> tuple[torch.dtype, tuple[int, ...]]:
        """(dtype, shape) of the packed codes of a tensor of `shape`."""
        rows = tuple(shape) or (1,)
        return packed_dtype(self.element), (*rows[:-1], packed_size(self.element, rows[-1]))

    def bits_per_element(self, shape: tuple[int, ...]) -> float:
        """Stored bits of a tensor of `shape` with its scales and zero points, per element."""
        parts = self.stored(shape).values()
        overhead = sum(8 * dtype.itemsize * prod(own) for dtype, own in parts)
        return self.bits + overhead / max(prod(shape), 1)
