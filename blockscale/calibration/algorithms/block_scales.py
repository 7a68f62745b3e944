# SPDX-License-Identifier: BSD-3-Clause
"""Scales for the blocks of a weight, one block by itself, through the format's own scale rule.

Here the outer scale of a two-level format is fixed: it is what the whole weight chooses by its
largest magnitude, spread to one per block (`spread`), so that blocks can be looked at one by one.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core import reference
from blockscale.core.arithmetic.precision import FLT_MAX
from blockscale.core.block import WHOLE, Block, read_block
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


def spread(weight: Tensor, fmt: Format) -> tuple[Format, QParams, Tensor | None]:
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
    return reference.settled(x, ranges, qparams, fmt)


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
    single, choice, outer = spread(x, fmt)
    if fmt.element.learned:
        return choice
    elements = _PART if x.device.type == "cpu" else _PART_ELSEWHERE
    for of_weight, of_scale in whole_blocks((x.shape[0], x.shape[1]), fmt.block, elements):
        outer_part = None if outer is None else outer[of_scale].contiguous()
        best = search(x[of_weight].contiguous(), single, outer_part, of_weight[1])
        put(best, choice, of_scale)
    return choice


def put(part: QParams, whole: QParams, at: tuple[slice, slice]) -> None:
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
