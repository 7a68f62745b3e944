# SPDX-License-Identifier: BSD-3-Clause
"""A format as numbers: what kernels of every backend branch on and compute with.

This is the only place that turns a Format into what a kernel takes. Elements say their own part
(`Element.numbers`). An element that does not, or whose family a backend does not name, has no
kernels: its ops run on the reference.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core.block import WHOLE
from blockscale.core.element import ElementNumbers
from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.scale import RULES, FloatScale, PowerOfTwo
from blockscale.core.scales import CodeScale, TwoLevel

# Fewer dimensions with the same blocks, so that kernels for a few serve tensors of any rank.
#
# Sizes of blocks are those of Block.sizes_for (blockscale.core.block).

Sizes = tuple[int, ...]


def merged(shape: Sequence[int], sizes: Sequence[int]) -> tuple[Sizes, Sizes]:
    """A contiguous tensor of `shape` in blocks of `sizes`, with neighbouring dimensions merged.

    Returns the shape and the sizes of its blocks, none of them larger than its dimension, of the
    same memory seen in as few dimensions as the blocks allow: the same elements share a scale, and
    scales have the same row-major order. Dimensions of size 1 are dropped, so a tensor of one
    element has none left. Two neighbours merge where
        the inner one is whole:  [4, 9] in blocks of (2, whole) is [36] in blocks of 18;
        the outer one has blocks of 1 and those of the inner one divide it:
                                 [4, 64] in blocks of (1, 32) is [256] in blocks of 32.
    An empty tensor comes back as it is: its scales have no common order of elements to keep.

    Raises ValueError for another number of sizes than dimensions.
    """
    if len(shape) != len(sizes):
        raise ValueError(
            f"expected a block size for each of {len(shape)} dimensions, found {sizes}"
        )
    if prod(shape) == 0:
        return tuple(shape), tuple(sizes)
    merged_shape: list[int] = []  # innermost first
    merged_sizes: list[int] = []
    for n, inputs in zip(reversed(shape), reversed(sizes), strict=True):
        size = n if inputs == WHOLE else min(inputs, n)
        if n == 1:
            continue
        if merged_shape and _joins(size, merged_shape[-1], merged_sizes[-1]):
            inner = merged_shape[-1]
            merged_sizes[-1] = size * inner if merged_sizes[-1] == inner else merged_sizes[-1]
            merged_shape[-1] = n * inner
        else:
            merged_shape.append(n)
            merged_sizes.append(size)
    return tuple(reversed(merged_shape)), tuple(reversed(merged_sizes))


def _joins(outer_size: int, inner: int, inner_size: int) -> bool:
    """Whether a dimension with blocks of `outer_size` merges with the next one."""
    return inner_size == inner or (outer_size == 1 and inner % inner_size == 0)


# The activations that products may end in, by the names that ops give them.


def _same(x: Tensor) -> Tensor:
    return x


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "": _same,
    "relu": torch.relu,
    "relu6": F.relu6,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "hardswish": F.hardswish,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


@dataclass(frozen=True)
class FormatNumbers:
    """A format without its block (docs/numerics.md, sections 1 to 3). Hashable.

    statistic: what a block's scale is chosen from: "magnitude", "high", "range", "mean" or
        "mean_above" (3.1, 3.2)
    scale: how it is stored: "fp32", "fp16", "bf16", "pow2", "e8m0" or "two_level"
    nearest: that rule of a power-of-two scale, in the place of `threshold`, T of 3.4
    emax, levels: of L, which the numerator is divided by
    fraction_bits: f of 1.3
    full: the quotient of 3.1 that has a divisor for each sign, element.low and element.high
    asym: a zero point besides the scale
    recip: multiply by the reciprocal of the scale
    poisons: a non-finite value makes its whole block NaN
    rounding: one of blockscale.core.rounding.ROUNDINGS
    inner: the element that scales of two levels are codes of, with outer_levels = L * Lc (3.5)
    features: what few formats have, which a kernel does not know unless it says so: "offset"
        (3.8), "float_zero" (a zero point that is no integer), "signed" (a scale chosen with the
        sign of the largest value), "given" (one that cannot be chosen), "inner" (scales of two
        levels beyond those of unsigned integers and minifloats under a float32), "flat" (blocks
        over the flattened tensor), "nd" (blocks along more than two dimensions) and "code" (a scale
        that is the code of a float) and "compares" (one that a block's numbers decide about)
    offset: how offsets are stored: "fp32", "fp16", "bf16", or "" where a format has none
    zero: the same of zero points that are no integers, else ""
    """

    element: ElementNumbers
    statistic: str
    scale: str
    nearest: bool
    threshold: int
    emax: int
    levels: float
    fraction_bits: int
    full: bool
    asym: bool
    recip: bool
    poisons: bool
    rounding: str
    inner: ElementNumbers | None
    outer_levels: float
    features: tuple[str, ...]
    offset: str
    zero: str

    @property
    def families(self) -> tuple[str, ...]:
        """The families of elements that a kernel has to know."""
        both = (self.element, self.inner)
        return tuple(element.family for element in both if element is not None)


def lower(fmt: Format | str) -> FormatNumbers | None:
    """The numbers of a format, its name or its spelling.

    None if its element or its scales' element does not lower itself (`Element.numbers`).
    Raises ValueError for a spelling that `parse` does not know.
    """
    return _lower(fmt if isinstance(fmt, str) else fmt.spelling)


@cache
def _lower(spelling: str) -> FormatNumbers | None:
    fmt = parse(spelling)
    scale = fmt.scale
    element, inner = fmt.element.numbers(fmt.wide), None
    outer_levels = 0.0
    if isinstance(scale, TwoLevel):
        inner = scale.inner.element.numbers(False)
        outer_levels = fmt.levels.value * scale.top
    if element is None or (inner is None and isinstance(scale, TwoLevel)):
        return None
    rule = scale.rule if isinstance(scale, PowerOfTwo) else ""
    full = fmt.two_sided and isinstance(scale, FloatScale)
    return FormatNumbers(
        element=element,
        statistic="range" if _needs_both_ends(fmt, full) else element.statistic,
        scale="two_level" if isinstance(scale, TwoLevel) else str(scale).partition("/")[0],
        nearest=rule == "nearest",
        threshold=fmt.levels.threshold(rule) if rule in RULES and rule != "nearest" else 0,
        emax=fmt.levels.emax,
        levels=fmt.levels.value,
        fraction_bits=fmt.fraction_bits,
        full=full,
        asym=fmt.asym,
        recip=fmt.recip,
        poisons=scale.poisons,
        rounding=fmt.rounding,
        inner=inner,
        outer_levels=outer_levels,
        features=_features(fmt),
        offset="" if fmt.offset is None or fmt.offset.inner else str(fmt.offset.type),
        zero="" if fmt.zero is None else str(fmt.zero),
    )


def _needs_both_ends(fmt: Format, full: bool) -> bool:
    """Whether both ends of a block's range count."""
    return fmt.asym or full or fmt.span == "signed" or fmt.offset is not None


def _features(fmt: Format) -> tuple[str, ...]:
    """FormatNumbers.features of a format."""
    scale, offset = fmt.scale, fmt.offset
    plain_offset = offset is None or (offset.inner is None and offset.block is None)
    has = {
        "offset": offset is not None and plain_offset,
        "float_zero": fmt.zero is not None,
        "signed": fmt.span == "signed",
        "given": fmt.unchosen is not None,
        "inner": not plain_offset or (isinstance(scale, TwoLevel) and not plain_levels(scale)),
        "flat": fmt.block.flat > 0,
        "nd": fmt.block.name.startswith("block"),
        "code": isinstance(scale, CodeScale),
        "compares": fmt.compares,
    }
    return tuple(name for name, there in has.items() if there)


def plain_levels(scale: TwoLevel[Format]) -> bool:
    """Whether scales of two levels are of the kind that kernels have always known."""
    inner, element = scale.inner, scale.inner.element
    plain = str(inner.scale) == "fp32" and inner.offset is None and not scale.reciprocal
    flat = inner.block.flat > 0 or inner.block.name.startswith("block")
    own = element.numbers(False)
    old = own is not None and own.family in ("integer", "minifloat")
    is_known = old and (not element.signed or element.nan_code is not None)
    return plain and is_known and not flat


def lowered(fmt: Format | str) -> FormatNumbers:
    """The numbers of a format that `supports_families` admitted.

    Raises TypeError where `lower` gives None.
    """
    numbers = lower(fmt)
    if numbers is None:
        raise TypeError(f"no kernel supports the elements of {fmt}: ops run them on the reference")
    return numbers


def supports_families(
    families: Collection[str], features: Collection[str] = ()
) -> Callable[[Sequence[Format]], bool]:
    """What a kernel's `supports` asks of the formats of a call, all of them.

    True only where every element, that of a scale's own format included, is of one of these
    families, and a format has no other features than these (FormatNumbers.features). What a
    backend does not name it does not run: the reference does.
    """
    names, takes = frozenset(families), frozenset(features)

    def supports(formats: Sequence[Format]) -> bool:
        for fmt in formats:
            numbers = lower(fmt)
            if numbers is None or not names.issuperset(numbers.families):
                return False
            if not takes.issuperset(numbers.features):
                return False
        return True

    return supports
