# SPDX-License-Identifier: BSD-3-Clause
"""Scales for the blocks of a weight, one block by itself, through the format's own scale rule.

Here the outer scale of a two-level format is fixed: it is what the whole weight chooses by its
largest magnitude, one per block (`per_block`), so that blocks can be looked at one by one.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core import reference
from blockscale.core.arithmetic.precision import FLT_MAX
from blockscale.core.block import WHOLE, Block, read_block
from blockscale.core.elements.minifloat import Minifloat
from blockscale.core.format import Format
from blockscale.core.operand import quantizer
from blockscale.core.reference import QParams
from blockscale.core.scale import PowerOfTwo
from blockscale.core.scales import CodeScale, TwoLevel
from blockscale.ops import primitives
from blockscale.ops.tensor import QTensor

# Scales of a step that is wanted, beside an outer scale that is known.
#
# `blockscale.core.reference` chooses the scale of a block from its range. Whoever searches for a
# better scale of one block may know its step instead, and leaves the outer scale as it is.


def nearest_scale(step: Tensor, outer: Tensor | None, fmt: Format) -> Tensor:
    """Wanted steps [scale's shape] float32 -> the stored scales whose steps are nearest.

    outer: float32, in the layout of the inner format's blocks, None for a format with one level.
    Powers of two are chosen by their logarithm, whatever the format's rule: that rule says how far
    a largest magnitude may reach, and here the step itself is known.
    """
    if fmt.element.by_sign:  # of the grid that the step's sign means
        size = _nearest_size(step.abs(), outer, fmt)
        return torch.where(step.signbit(), reference.negated(size, fmt), size)
    return _nearest_size(step, outer, fmt)


def _nearest_size(step: Tensor, outer: Tensor | None, fmt: Format) -> Tensor:
    if isinstance(fmt.scale, TwoLevel):
        assert outer is not None
        return fmt.scale.encode(fmt.scale.in_outer(step, outer))
    if isinstance(fmt.scale, PowerOfTwo):
        nearest = PowerOfTwo("nearest", fmt.scale.byte)
        numerator = (step * fmt.levels.value).clamp(max=FLT_MAX)
        return nearest.store(numerator, fmt.levels, fmt.fraction_bits)
    if isinstance(fmt.scale, CodeScale):
        return fmt.scale.store(step)
    return (fmt.scale.store_signed if fmt.span == "signed" else fmt.scale.store)(step)


_PART = 1 << 16  # elements looked at together: their float64 errors fit a core's cache
_PART_ELSEWHERE = 1 << 23  # where a launch costs more than a pass over memory


def widened(weight: Tensor, fmt: Format, layer: str) -> Tensor:
    """Weight [n, k] -> float32, contiguous. Raises ValueError for what no algorithm here serves."""
    if weight.ndim != 2:
        raise ValueError(
            f"{layer}: expected a weight [n, k] as it is stored, found {tuple(weight.shape)}"
        )
    if fmt.rounding == "stochastic":
        raise ValueError(
            f"{layer}: {fmt} rounds stochastically, which would undo the choice of codes: "
            "leave out 'stochastic', or quantize this layer with 'absmax'"
        )
    if fmt.unchosen:
        raise ValueError(f"{layer}: {fmt}: {fmt.unchosen}: no algorithm can choose it")
    if fmt.offset is not None and fmt.offset.inner is not None:
        raise ValueError(
            f"{layer}: {fmt}: blocks share the scale of their offsets, so no block can be "
            "searched alone: quantize this layer with 'absmax', or store the offsets as "
            "floats, offset(fp16)"
        )
    wide = reference.widen(weight.detach()).contiguous()
    if odd := int((~wide.isfinite()).sum()):
        raise ValueError(
            f"{layer}: {odd} of {wide.numel()} weights are NaN or infinite: repair them, or "
            "quantize this layer with 'absmax'"
        )
    return wide


def per_block(weight: Tensor, fmt: Format) -> tuple[Format, QParams, Tensor | None]:
    """What `bs.quantize` chooses for a weight, its outer scale, and that outer one per block.

    The format returned is `fmt`, its scale's own blocks of one element: it reads such outer scales.
    """
    choice = primitives.from_list(primitives.choose_qparams(weight, str(fmt)), fmt)
    single, outer = spread_outer(choice, fmt)
    return single, choice, outer


def spread_outer(qparams: QParams, fmt: Format) -> tuple[Format, Tensor | None]:
    """The outer scale among these parts, one per block, and the format that reads it."""
    if qparams.outer is None or not isinstance(fmt.scale, TwoLevel):
        return fmt, None
    inner = fmt.scale.inner
    shape = qparams.scale.shape
    outer = inner.block.expand(qparams.outer, shape).expand(shape).contiguous()
    single = replace(inner, block=read_block("group1"))
    return replace(fmt, scale=replace(fmt.scale, inner=single)), outer


def choose_scales(low: Tensor, high: Tensor, fmt: Format, outer: Tensor | None) -> QParams:
    """The range of each block -> its scale and zero point, under a given outer scale.

    No block is poisoned: `widened` has refused what is not finite.
    """
    nowhere = torch.zeros_like(low, dtype=torch.bool)
    return reference.qparams_from_range(low, high, nowhere, fmt, outer)


def plain_scales(x: Tensor, fmt: Format, outer: Tensor | None) -> QParams:
    """x [n, k] -> the scale of each block that `bs.quantize` chooses, under a given outer scale."""
    ranges = reference.ranges(x, fmt)
    qparams = choose_scales(ranges.low, ranges.high, fmt, outer)
    return reference.settle(x, ranges, qparams, fmt)


def round_trip(x: Tensor, qparams: QParams, fmt: Format) -> Tensor:
    """x [n, k] -> its values after a round trip."""
    rounded: Tensor = primitives.fake_quantize(x, quantizer(qparams, fmt))
    return rounded


def quantized(x: Tensor, qparams: QParams, fmt: Format) -> QTensor:
    """x [n, k] with chosen scales, the true outer scale among them -> its codes."""
    packed = primitives.quantize(x, quantizer(qparams, fmt))
    return QTensor(packed, qparams, fmt, x.shape[-1])


def block_sums(x: Tensor, block: Block) -> Tensor:
    """x [n, k] -> the sum of each block [scale's shape]: the transpose of `Block.expand`."""
    if block.flat:
        shape = block.scale_shape(x.shape)
        if block.strided:
            return x.reshape(block.flat, -1).sum(0).reshape(shape)
        flat = F.pad(x.reshape(-1), (0, -x.numel() % block.flat))
        return flat.reshape(-1, block.flat).sum(1).reshape(shape)
    for dim, size in enumerate(block.sizes_for(x.ndim)):
        if size == WHOLE:
            x = x.sum(dim, keepdim=True)
        elif size > 1:
            padding = [0, 0] * (x.ndim - 1 - dim) + [0, -x.shape[dim] % size]
            x = F.pad(x, padding).unflatten(dim, (-1, size)).sum(dim + 1)
    return x


def select(better: Tensor, new: QParams, old: QParams) -> QParams:
    """`new` for the blocks that are better [scale's shape], else `old`."""
    return QParams(
        *(None if a is None else torch.where(better, a, b) for a, b in zip(new, old, strict=True))  # type: ignore[arg-type]
    )


class WholeBlocks(NamedTuple):
    """Some whole blocks of a weight [n, k]: where they are in it, and where in its scale."""

    of_weight: tuple[slice, slice]
    of_scale: tuple[slice, slice]


def whole_blocks(
    shape: tuple[int, int], block: Block, elements: int = _PART
) -> Iterator[WholeBlocks]:
    """A weight [n, k] in parts of about so many elements that cut no block: memory is bounded."""
    every, sizes = slice(None), (WHOLE, WHOLE) if block.flat else block.sizes_for(2)
    dims = [dim for dim in (0, 1) if sizes[dim] != WHOLE]
    if not dims:
        yield WholeBlocks((every, every), (every, every))
        return
    dim = dims[0]
    size = sizes[dim]
    count = max(1, elements // max(1, size * shape[1 - dim]))  # blocks in a part
    for first in range(0, -(-shape[dim] // size), count):
        of_scale = slice(first, first + count)
        of_weight = slice(first * size, (first + count) * size)
        yield (
            WholeBlocks((of_weight, every), (of_scale, every))
            if dim == 0
            else WholeBlocks((every, of_weight), (every, of_scale))
        )


# Weights [n, k], their format, their outer scales, which columns they are -> scales
Search = Callable[[Tensor, Format, Tensor | None, slice], QParams]


def search_by_parts(x: Tensor, fmt: Format, search: Search) -> QParams:
    """x [n, k] float32 -> the scales that `search` gives for it, a part at a time.

    Scales that a learned table belongs to stay what the whole weight chooses.
    """
    single, choice, outer = per_block(x, fmt)
    if fmt.element.learned:
        return choice
    elements = _PART if x.device.type == "cpu" else _PART_ELSEWHERE
    for of_weight, of_scale in whole_blocks((x.shape[0], x.shape[1]), fmt.block, elements):
        outer_part = None if outer is None else outer[of_scale].contiguous()
        best = search(x[of_weight].contiguous(), single, outer_part, of_weight[1])
        write_part(best, choice, of_scale)
    return choice


Where = slice | Tensor  # of neighbours: a slice, or on a GPU their numbers, int64, in its memory


def write_part(part: QParams, whole: QParams, at: tuple[slice, Where]) -> None:
    """Write scales, zero points and offsets of some blocks into those of all; the outer scale
    stays."""
    for name in ("scale", "zero_point", "offset"):
        into, new = getattr(whole, name), getattr(part, name)
        if into is not None and new is not None:
            into[at] = new


def in_steps(values: Tensor, qparams: QParams, fmt: Format) -> Tensor:
    """Values [n, k] of weights, or the weights -> how many steps of its block each is: without the
    offset, and in the dtype of `values`."""
    if qparams.offset is not None:
        values = values - fmt.block.expand(qparams.offset.to(torch.float32), values.shape)
    return values / fmt.block.expand(reference.step_of(qparams, fmt), values.shape)


# The scale of each block that leaves the least error, found by trying many.

_OCTAVE = 16  # candidates from one factor to its half
_POLISHES = 2
_AT_ONCE = 1 << 17  # elements of candidates that are looked at in one call: they fit a core's cache
_AT_ONCE_ELSEWHERE = 1 << 23  # where a launch costs more than a pass over memory


def best_scales(x: Tensor, fmt: Format, importance: Tensor | None, power: float = 2.0) -> QParams:
    """x [n, k] float32 -> the scales of the whole, a part at a time.

    importance: [k] float64, how much |error|^power of a column counts.
    """

    def of_part(part: Tensor, single: Format, outer: Tensor | None, columns: slice) -> QParams:
        counts = None if importance is None else importance[columns]
        return search(part, single, outer, counts, power=power)

    return search_by_parts(x, fmt, of_part)


def factors(fmt: Format, spacing: int = 1) -> list[float]:
    """Every `spacing`-th of what a block's range is multiplied with; 1 comes first anyway.

    Down to 0.18, where integers of two bits have their best range even in large blocks; up to 1.41,
    or, for minifloats, to 4: they have finer steps lower down. Of power-of-two scales, the
    neighbouring exponents, down to 2^-12 for an outlier in a large block; all of them.
    """
    if isinstance(fmt.scale, PowerOfTwo):
        return [2.0**-j for j in range(-2, 13) if j]
    top = 2 * _OCTAVE if isinstance(fmt.element, Minifloat) else _OCTAVE // 2
    return [2.0 ** (j / _OCTAVE) for j in range(top, -5 * _OCTAVE // 2 - 1, -spacing) if j]


def search(
    x: Tensor,
    fmt: Format,
    outer: Tensor | None,
    importance: Tensor | None,
    *,
    spacing: int = 1,
    power: float = 2.0,
) -> QParams:
    """x [n, k] -> for each block the candidate with the least sum of |error|^power.

    importance: [k], or [n, k] where rows have their own
    spacing: from one of `factors` that is tried to the next
    """
    count = Errors(x, fmt, importance, power)
    low, high, _ = reference.ranges(x, fmt)
    best = plain_scales(x, fmt, outer)
    least = count.of(best)
    middle = low / 2 + high / 2 if fmt.offset is not None else torch.zeros_like(low)
    for some in _together(factors(fmt, spacing), x, fmt):
        lower, higher = (
            torch.cat([(middle + (end - middle) * f).clamp(-FLT_MAX, FLT_MAX) for f in some])
            for end in (low, high)
        )
        outers = None if outer is None else outer.repeat(len(some), 1)
        candidate = choose_scales(lower, higher, fmt, outers)
        best, least = count.better(_neighbours(candidate, fmt), best, least)
    for _ in range(0 if isinstance(fmt.scale, PowerOfTwo) else _POLISHES):
        start = _polish(x, best, fmt, importance)
        best, least = count.better(_neighbours(start, fmt), best, least)
    return best


def _together(factors: list[float], x: Tensor, fmt: Format) -> Iterator[list[float]]:
    """The factors whose candidates are looked at in one call, one below another. Blocks that span
    rows are looked at one by one."""
    count = 1
    if not fmt.block.flat and fmt.block.sizes_for(2)[0] == 1:
        elements = _AT_ONCE if x.is_cpu else _AT_ONCE_ELSEWHERE
        count = max(1, elements // max(1, x.numel()))
    for first in range(0, len(factors), count):
        yield factors[first : first + count]


class Errors(NamedTuple):
    """How the error of weights x [n, k] is counted: the sum of importance · |error|^power."""

    x: Tensor
    fmt: Format
    importance: Tensor | None
    power: float = 2.0

    def of(self, qparams: QParams) -> Tensor:
        """The error of each block; float64, so that none vanishes.

        The scales may be those of several candidates, one below another.
        """
        times = len(qparams.scale) // max(1, self.fmt.block.scale_shape(tuple(self.x.shape))[0])
        x = self.x.repeat(times, 1) if times > 1 else self.x
        error = round_trip(x, qparams, self.fmt).double() - x
        error = error.square_() if self.power == 2 else error.abs_().pow_(self.power)
        if (counts := self.importance) is not None:
            error *= counts.repeat(times, 1) if times > 1 and counts.ndim > 1 else counts
        return block_sums(error, self.fmt.block)

    def better(
        self, candidates: list[QParams], best: QParams, least: Tensor
    ) -> tuple[QParams, Tensor]:
        """The better of the best so far and further candidates, block by block; the first of those
        that are equal. Each candidate may be several, one below another."""
        size = len(least)
        times = max(1, len(candidates[0].scale) // max(1, size))
        if len(candidates) == times == 1:
            error = self.of(candidates[0])
            return select(error < least, candidates[0], best), torch.minimum(error, least)

        def by_number(parts: Iterable[Tensor]) -> Tensor:
            candidates = [part.unflatten(0, (times, size)) for part in parts]
            return torch.stack(candidates, 1).flatten(0, 1)

        errors = by_number([self.of(each) for each in candidates]).nan_to_num(nan=torch.inf)
        error, which = errors.min(0)
        parts = zip(*candidates, strict=True)
        new = [None if p[0] is None else by_number(p).gather(0, which[None])[0] for p in parts]
        choice = QParams(*new)  # type: ignore[arg-type]
        return select(error < least, choice, best), torch.minimum(error, least)


def _neighbours(candidate: QParams, fmt: Format) -> list[QParams]:
    """A candidate, and it with the two zero points beside its own, or with its other sign."""
    if fmt.span == "signed" or fmt.element.by_sign:
        other = reference.negated(candidate.scale, fmt)
        return [candidate, candidate._replace(scale=other)]
    if candidate.zero_point is None:
        return [candidate]
    low, high = (int(end) for end in fmt.element.limits(fmt.wide))
    shifted = [(candidate.zero_point + shift).clamp(low, high) for shift in (0, -1, 1)]
    of_zero = [candidate] if fmt.zero is not None else []  # a float may lie beyond the codes
    return of_zero + [candidate._replace(zero_point=zero) for zero in shifted]


def _polish(x: Tensor, best: QParams, fmt: Format, importance: Tensor | None) -> QParams:
    """The same codes, under the step that fits them best: <x, v> / <v, v> for values v in steps."""
    step = reference.step_of(best, fmt)
    v = in_steps(round_trip(x, best, fmt).double(), best, fmt)
    weighted = v if importance is None else v * importance
    if best.offset is not None:
        x = x - fmt.block.expand(best.offset.to(torch.float32), x.shape)
    of_x, of_v = block_sums(weighted * x, fmt.block), block_sums(weighted * v, fmt.block)
    fits = (of_v > 0) & (of_x * step.sign() > 0)
    fit = torch.where(fits, of_x / of_v, step.double())
    return best._replace(scale=nearest_scale(fit.clamp(max=FLT_MAX).float(), best.outer, fmt))
