# SPDX-License-Identifier: BSD-3-Clause
"""Scales and offsets that are codes: of a small float, or of a format with a scale of its own."""

from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from blockscale.core.arithmetic.precision import FLT_MAX, FLT_SMALLEST, divide
from blockscale.core.block import Block, Blocks
from blockscale.core.element import Element
from blockscale.core.rounding import nearest_even
from blockscale.core.scale import GIVEN, FloatScale, Levels

# Scales that are codes by themselves (numerics.md, 3.3).


@dataclass(frozen=True)
class CodeScale:
    """The code of a small unsigned float, one level: `ue5m3` (numerics.md, 3.3).

    element: an unsigned minifloat, with a range so wide that it needs no outer scale
    """

    element: Element

    @property
    def name(self) -> str:
        """As formats spell it."""
        return self.element.name

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the stored scale: a byte a code."""
        return torch.uint8

    @property
    def bits(self) -> int:
        """Stored bits of one scale."""
        return 8

    @property
    def poisons(self) -> bool:
        """Whether a NaN or an infinity makes its whole block NaN: if a code can be NaN."""
        return self.element.nan_code is not None

    @property
    def low(self) -> float:
        """The smallest scale that is chosen, also for blocks of zeros."""
        return self.element.smallest

    @property
    def high(self) -> float:
        """The largest scale."""
        return self.element.max

    def __str__(self) -> str:
        return self.name

    def store(self, raw: Tensor) -> Tensor:
        """The quotient a / L [...] float32 -> the stored scale [...], codes."""
        raw = raw.clamp(self.low, self.high)
        return self.element.to_bits(self.element.encode(raw, nearest_even, None, False))

    def poison(self, codes: Tensor, poisoned: Tensor) -> Tensor:
        """Codes [...] -> the NaN code where a block is poisoned, if there is such a code."""
        nan_code = self.element.nan_code
        return codes if nan_code is None else torch.where(poisoned, nan_code, codes)

    def step(self, stored: Tensor) -> Tensor:
        """Stored scale [...] -> step [...] float32."""
        return self.element.decode(self.element.from_bits(stored))


# Scales of two levels: codes of a small format that has a scale of its own (numerics.md, 3.5).

FOUR_SIX = "four_six"  # the rule of `e4m3/four_six`
_WIDER = 1.5  # a block whose largest number becomes 4 and not 6 has a step so many times as large
_TOP = 256.0  # the largest scale of a block for 6 under that rule: 1.5 times as much is a scale too
SHORT_INNER = ("e4m3", "e5m2")  # `e4m3` is short for `(e4m3:tensor:fp32)`


class InnerFormat(Protocol):
    """What a TwoLevel needs to know of the format of its scales. `Format` has it."""

    @property
    def element(self) -> Element:
        """What one stored scale can be."""

    @property
    def block(self) -> Block:
        """Which scales share an outer scale."""

    @property
    def scale(self) -> Any:
        """How an outer scale is stored: a FloatScale."""


Inner = TypeVar("Inner", bound=InnerFormat)


@dataclass(frozen=True)
class TwoLevel(Generic[Inner]):
    """Scales of blocks that are themselves quantized, as NVFP4's e4m3 under one float32 (3.5).

    inner: the format of the scales. The stored scales are its codes, one a byte, and they have a
        scale themselves: the outer scale, one float for each block of scales
    reciprocal: the outer scale is stored as its reciprocal, and codes are divided by it
    given: the outer scale comes from elsewhere, as that of a calibrated input; inner ones are
        chosen beside it
    rule: "" for the scale that the largest magnitude of a block asks for, or FOUR_SIX for that or
        1.5 times as much, whichever leaves less error (Cook et al. 2025, arXiv 2512.02010)
    """

    inner: Inner
    reciprocal: bool = False
    given: bool = False
    rule: str = ""

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
        levels = element if short else f"({plain})"
        rule = f"/{self.rule}" if self.rule else ""
        return levels + "/inv" * self.reciprocal + rule + f"/{GIVEN}" * self.given

    @property
    def compares(self) -> bool:
        """Whether the numbers of a block decide about its scale, and not its range alone."""
        return self.rule == FOUR_SIX

    @property
    def plain(self) -> "TwoLevel[Inner]":
        """The same without a rule: what codes and scales mean is equal."""
        return replace(self, rule="")

    @property
    def largest(self) -> float:
        """Lc, the largest value of the scales' own element."""
        return self.inner.element.limits(False)[1]

    @property
    def top(self) -> float:
        """The scale that the largest block of all gets, in units of the outer scale."""
        return _TOP if self.compares else self.largest

    @property
    def outer_type(self) -> FloatScale:
        """How outer scales are stored."""
        assert isinstance(self.inner.scale, FloatScale)
        return self.inner.scale

    def ratio(
        self, a: Tensor, levels: Levels, poisoned: Tensor, outer: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The numerator a [...] float32 -> the scales before they are encoded, and the outer scale.

        The scales are [...] float32 in steps of the outer scale; the outer scale has one float
        for each block of scales. poisoned: bool [...], which blocks hold a NaN or an infinity; the
        outer scale is chosen without them. outer: the outer scale, where it is given.
        """
        if outer is None:
            outer = self.outer_of(self.tops(a, poisoned), levels)
        return self.in_outer(divide(a, levels.value), outer), outer

    def tops(self, a: Tensor, poisoned: Tensor) -> Tensor:
        """The numerator a [...] float32 -> A, the largest for each outer scale, [its shape].

        Tensors that share an outer scale have the largest of their tops for a top.
        """
        # abs: -0, which torch may find for the largest of zeros, has a negative reciprocal
        return Blocks(torch.where(poisoned, 0.0, a), self.inner.block).range()[1].abs()

    def outer_of(self, tops: Tensor, levels: Levels) -> Tensor:
        """The largest numerator A of each outer scale -> the outer scale, as it is stored."""
        # one division by the product, as torchao does (448 * 6 = 2688)
        divisor = torch.full((), levels.value * self.top, dtype=tops.dtype, device=tops.device)
        return self.outer_type.store(divisor / tops if self.reciprocal else tops / divisor)

    def in_outer(self, step: Tensor, outer: Tensor) -> Tensor:
        """Wanted steps [...] float32 -> the same in units of their outer scale."""
        each = self.inner.block.expand(outer.to(torch.float32), step.shape)
        return step * each if self.reciprocal else step / each

    def store(
        self, a: Tensor, levels: Levels, poisoned: Tensor, outer: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The numerator a [...] float32 -> the stored scale [...], codes, and the outer scale, that
        which is given or one that a chooses."""
        ratio, outer = self.ratio(a, levels, poisoned, outer)
        return self.encode(ratio), outer

    def wider(
        self, a: Tensor, levels: Levels, poisoned: Tensor, outer: Tensor | None = None
    ) -> Tensor:
        """As `store`, for blocks whose largest number becomes 4 and not 6: codes alone."""
        ratio = self.ratio(a, levels, poisoned, outer)[0]
        return self.poison(self.encode(ratio * _WIDER), poisoned)

    def encode(self, ratio: Tensor) -> Tensor:
        """Block scales in units of their outer scale [...] float32 -> inner codes [...]."""
        element = self.inner.element
        ratio = ratio.clamp(element.smallest_normal, self.largest)
        return element.to_bits(element.encode(ratio, nearest_even, None, False))

    def negated(self, codes: Tensor) -> Tensor:
        """Inner codes [...] of an element with a sign -> those of the negative values."""
        element = self.inner.element
        return element.to_bits(element.encode(-self.values(codes), nearest_even, None, False))

    def poison(self, codes: Tensor, poisoned: Tensor) -> Tensor:
        """Inner codes [...] -> the NaN code where a block is poisoned, if there is such a code."""
        nan_code = self.inner.element.nan_code
        return codes if nan_code is None else torch.where(poisoned, nan_code, codes)

    def values(self, codes: Tensor) -> Tensor:
        """The stored scale [...], codes -> their values [...] float32, without the outer scale."""
        return self.inner.element.decode(self.inner.element.from_bits(codes))

    def step(self, codes: Tensor, outer: Tensor, offset: Tensor | None = None) -> Tensor:
        """The stored scale [...] and the outer scale -> the step [...] float32.

        It is never infinite, and 0 only where a code or an outer scale is.
        offset: of the scales, [...] or what broadcasts, where their format has one
        """
        value = self.values(codes)
        each = self.inner.block.expand(outer.to(torch.float32), codes.shape)
        step = value / each if self.reciprocal else each * value
        size = step.abs().clamp(FLT_SMALLEST, FLT_MAX)
        zero = (value == 0) | ((each == 0) & (not self.reciprocal))
        step = torch.where(zero, step, size.copysign(step))
        return step if offset is None else step + offset


# Offsets: a number added to the values of a block, x ≈ code * step + offset (numerics.md, 3.8).


@dataclass(frozen=True)
class Offset(Generic[Inner]):
    """How the offset of a block is stored.

    type: a float, or a small format whose codes offsets are; their own scale is one float for each
        block of offsets
    block: which elements of the tensor share an offset; None: those that share a scale
    """

    type: "FloatScale | Inner"
    block: Block | None = None

    @property
    def inner(self) -> "Inner | None":
        """The format of the offsets, where they are quantized."""
        return None if isinstance(self.type, FloatScale) else self.type

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the stored offset: a byte where it is a code."""
        return self.type.dtype if isinstance(self.type, FloatScale) else torch.uint8

    @property
    def bits(self) -> int:
        """Stored bits of one offset."""
        return self.dtype.itemsize * 8

    def __str__(self) -> str:
        block = "" if self.block is None else f"{self.block}:"
        return f"offset({block}{self.type})"

    def store(self, offset: Tensor) -> tuple[Tensor, Tensor | None]:
        """Offsets [...] float32 -> what is stored, and the scale of their codes where they are.

        Offsets in a format of unsigned elements are at most 0: their scale is stored negative.
        """
        inner = self.inner
        if inner is None:
            assert isinstance(self.type, FloatScale)
            return self.type.store_any(offset), None
        element, block = inner.element, inner.block
        sign = 1.0 if element.signed else -1.0
        offset = offset * sign
        top = torch.full((), element.limits(False)[1], dtype=offset.dtype, device=offset.device)
        outer = inner.scale.store(Blocks(offset.abs(), block).range()[1] / top)
        steps = offset / block.expand(outer.to(torch.float32), offset.shape)
        codes = element.to_bits(element.encode(steps, nearest_even, None, False))
        return codes, outer if sign > 0 else -outer

    def value(self, stored: Tensor, outer: Tensor | None) -> Tensor:
        """The stored offset [...] and the scale of its codes -> the offset [...] float32.

        That of a code is never infinite: the scale was rounded, and infinities of both signs that
        meet would make NaN of a finite number.
        """
        inner = self.inner
        if inner is None:
            return stored.to(torch.float32)
        assert outer is not None
        codes = inner.element.decode(inner.element.from_bits(stored))
        offset = codes * inner.block.expand(outer.to(torch.float32), codes.shape)
        return offset.clamp(-FLT_MAX, FLT_MAX)
