# SPDX-License-Identifier: BSD-3-Clause
"""A profile: how a producer chooses scales and codes, beside the format that says how to read them.

A format's own rules are docs/numerics.md; what libraries do differs from it in ways that a spelling
does not tell: the dtype of their arithmetic, the minimum of a scale, ties. Each is a field here.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from math import prod

import torch
from torch import Tensor

from blockscale.core.block import read_block
from blockscale.core.format import Format
from blockscale.core.reference import QParams
from blockscale.core.rounding import DETERMINISTIC
from blockscale.core.scale import FLOAT_SCALES, FloatScale, PowerOfTwo
from blockscale.core.scales import CodeScale, TwoLevel

DTYPES = ("fp32", "input")
SIGNS = ("positive", "largest")
SEARCHES = ("format", *DETERMINISTIC, "half_up_add", "first_nearest")
# (x [...] finite float32, the result's format) -> (codes [...], what stands beside them)
Encoder = Callable[[Tensor, Format], tuple[Tensor, QParams]]
OWN = {scale.dtype: scale for scale in FLOAT_SCALES.values()}


@dataclass(frozen=True, kw_only=True)
class Profile:
    """How a producer chooses scales and codes. Its result is an ordinary QTensor of `format`.

    Each field after the first four is a rule that the producer has in the place of the contract's;
    left alone, it is the contract's (docs/numerics.md, 3 and 4). NaN and infinities are the
    contract's everywhere. Raises ValueError for a rule that does not exist or does not fit.

    name:    producer and format, "torchao.int8"; with a block of its own, "torchao.int8:group64"
    version: the producer's version that it was compared with; "" where there is none
    format:  what the result is, which says how to read it; float32 tensors where `scale_type` is
    blocks:  the kinds of blocks that may take the place of the format's, by how their names begin

    scale_type:       "input": a float scale or offset is stored in the tensor's dtype
    scale_arithmetic: "input": a range, a quotient and a zero point are rounded to the tensor's
        dtype after each operation; "fp32": float32
    code_arithmetic:  the same of a number of steps, and of the sum with a zero point
    widened:          whether a range is widened to hold 0, where the format has a zero point
    levels:           what the numerator is divided by, in the place of the element's largest value
    sign:             "largest": the scale has the sign of the first value of largest magnitude,
        times that of `levels`
    least:            the smallest scale, before it is cast; "normal": the smallest normal number of
        the arithmetic; 0.0: none. Scales that the stored type rounds to 0 or infinity then stay so
    zero_scale:       the scale of a block of zeros (under two levels: of the outer scale)
    zero_zero_point:  the zero point of such a block
    logarithm:        an e8m0/rceil scale comes from float32's log2, which rounds down the first
        numbers above a power of two (by exact integers, as every correctly rounded log2 does)
    outer:            the outer scale of a scale of two levels, in the place of a chosen one
    before_cast:      codes are encoded with the scale before it is cast to its stored type
    smallest_divisor: what numbers are divided by under a scale byte of 0, for 2^-127
    reciprocal:       numbers are multiplied by the reciprocal of the scale
    search:           how a number of steps becomes a code: "format", one of the deterministic
        roundings of docs/numerics.md, 2, "half_up_add" (truncate the float32 sum with 1/2 and what
        makes codes positive) or "first_nearest" (of a table by code, so ties go toward zero)
    encoder:          what chooses scales and codes where no rules like these do, without others.
        It is given 0 for NaN, and a block's largest and smallest finite numbers for infinities
    negative_zero:    whether a small negative number may become -0; else +0
    whole_blocks:     the producer refuses tensors that blocks do not divide, and so does this
    multiple:         it refuses rows of a length that this does not divide: several blocks in one
    fallback:         the profile that its producer takes for such rows, by name; empty: none
    """

    name: str
    version: str
    format: Format
    blocks: tuple[str, ...] = ()
    scale_type: str = "format"
    scale_arithmetic: str = "fp32"
    code_arithmetic: str = "fp32"
    widened: bool = True
    levels: float | None = None
    sign: str = "positive"
    least: float | str | None = None
    zero_scale: float | None = None
    zero_zero_point: int | None = None
    logarithm: bool = False
    outer: float | None = None
    before_cast: bool = False
    smallest_divisor: float | None = None
    reciprocal: bool = False
    search: str = "format"
    negative_zero: bool = True
    encoder: Encoder | None = None
    whole_blocks: bool = False
    multiple: int = 1
    fallback: str = ""

    def __post_init__(self) -> None:
        choices = {
            "scale_type": ("format", "input"),
            "scale_arithmetic": DTYPES,
            "code_arithmetic": DTYPES,
            "sign": SIGNS,
            "search": SEARCHES,
        }
        for field, options in choices.items():
            if getattr(self, field) not in options:
                self._refuse(
                    f"unknown {field} {getattr(self, field)!r}; choose from {', '.join(options)}"
                )
        if isinstance(self.least, str) and self.least != "normal":
            self._refuse(f"least must be 'normal', a number or None, got {self.least!r}")
        if self.encoder is not None:
            rules = [name for name in _DEFAULTS if name not in ("encoder", "scale_type")]
            if lines := [name for name in rules if getattr(self, name) != _DEFAULTS[name]]:
                self._refuse(
                    f"its encoder chooses scales and codes, so {lines[0]} has no effect: leave "
                    "it out"
                )
        elif not self.contract:
            self._check_format()

    def _check_format(self) -> None:
        """Refuse rules where the format has nothing that they could be about."""
        fmt, scale = self.format, self.format.scale
        if fmt.rounding == "stochastic" or fmt.unchosen:
            self._refuse(f"scales and codes of {fmt} cannot be chosen by a profile's rules")
        if not fmt.element.uses_range or fmt.offset or fmt.zero:
            self._refuse(f"a profile has no rules for the scales, zero points and offsets of {fmt}")
        by_format = isinstance(scale, CodeScale) or fmt != fmt.plain
        if by_format and not self.contract:
            self._refuse(f"a profile has no rules for scales in {scale}: leave them to the format")
        if fmt.span == "signed" or fmt.recip:
            self._refuse(
                f"{fmt}: write sign='largest' or reciprocal=True instead of an option of the format"
            )
        if self.search == "half_up_add" and not fmt.element.integer:
            self._refuse("half_up_add is only for integer elements")
        if self.search == "first_nearest" and fmt.element.bits > 8:
            self._refuse("first_nearest is only for elements of at most 256 values")
        kinds = {
            "float": FloatScale,
            "e8m0": PowerOfTwo,
            "two-level": TwoLevel,
        }
        for kind, names in _ONLY.items():
            for field in names:
                if not isinstance(scale, kinds[kind]) and getattr(self, field) != _DEFAULTS[field]:
                    self._refuse(f"{field} is only for {kind} scales, got {scale}")

    def _refuse(self, reason: str) -> None:
        raise ValueError(f"profile {self.name}: {reason}")

    @property
    def contract(self) -> bool:
        """Whether every rule is the contract's: then it quantizes as its format does."""
        return all(getattr(self, name) == value for name, value in _DEFAULTS.items())

    def with_block(self, name: str) -> "Profile":
        """The same for another block, which becomes part of its name.

        Raises ValueError for a block that is unknown, or that the producer does not have.
        """
        block = read_block(name)
        if block == self.format.block:
            return self
        if not block.name.startswith(self.blocks or "-"):
            blocks_text = (
                f"it also has {', '.join(self.blocks)}" if self.blocks else "it has no other"
            )
            self._refuse(f"its block must be {self.format.block}, {blocks_text}, got {block}")
        plain = self.name.partition(":")[0]
        return replace(self, name=f"{plain}:{block}", format=replace(self.format, block=block))

    def result(self, dtype: torch.dtype) -> Format:
        """The format that a tensor of this dtype becomes."""
        if self.scale_type != "input" or dtype not in OWN:
            return self.format
        own, offset = OWN[dtype], self.format.offset
        if offset is not None and isinstance(offset.type, FloatScale):
            offset = replace(offset, type=own)
        return replace(self.format, scale=own, offset=offset)

    def check_blocks(self, shape: torch.Size) -> None:
        """Raises ValueError where the producer refuses a tensor of `shape`."""
        sizes = [] if self.format.block.flat else self.format.block.sizes_for(len(shape))
        if self.whole_blocks and any(
            size > 1 and n % size for n, size in zip(shape, sizes, strict=False)
        ):
            self._refuse(f"blocks of {self.format.block} do not divide a tensor of {tuple(shape)}")
        if self.whole_blocks and self.format.block.flat and prod(shape) % self.format.block.flat:
            self._refuse(f"blocks of {self.format.block} do not divide a tensor of {tuple(shape)}")
        if self.multiple > 1 and (not shape or shape[-1] % self.multiple):
            self._refuse(f"rows of {self.multiple} do not divide a tensor of {tuple(shape)}")

    def __str__(self) -> str:
        return self.name


_OF_SHAPES = ("name", "version", "format", "blocks", "whole_blocks", "multiple", "fallback")
_DEFAULTS = {each.name: each.default for each in fields(Profile) if each.name not in _OF_SHAPES}
_ONLY = {
    "float": ("scale_type", "scale_arithmetic", "levels", "sign", "least", "before_cast"),
    "e8m0": ("logarithm", "smallest_divisor"),
    "two-level": ("outer",),
}
