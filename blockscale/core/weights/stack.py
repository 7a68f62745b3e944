# SPDX-License-Identifier: BSD-3-Clause
"""Stacks of matrices, such as experts [E, n, k]: the format in which each is as if it were alone.

A format's numbers that belong to a whole tensor (`tensor`, the outer scale of `nvfp4`) would be one
for all matrices of a stack. `of_stack` turns a matrix's format into the stack's, so that matrix e
of the quantized stack has the bits of the matrix quantized by itself; `of_matrix` turns it back:

    int8:tensor:fp32          int8:block*x*:fp32
    int8:channel0:fp32        int8:token:fp32, one scale for each row of each matrix
    e2m1:group16:e4m3         e2m1:group16:(e4m3:block*x*:fp32)
    e2m1:group32:e8m0/floor   the same

A matrix may be made of `parts` matrices of as many rows each, one below another, as the gate and
the up projection of an expert are: then each of these has its own numbers, `int8:block512x*:fp32`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from blockscale.core.block import WHOLE, Block, read_block
from blockscale.core.format import Format
from blockscale.core.scales.offset import Offset
from blockscale.core.scales.two_level import TwoLevel

Change = Callable[[Block, Sequence[int]], Block]
Shape = Callable[[Block, tuple[int, ...]], tuple[int, ...]]


def of_stack(fmt: Format, shape: Sequence[int], parts: int = 1) -> Format:
    """The format of a matrix -> that of a stack [..., n, k] of such matrices, or of several parts.

    shape: of the stack, as it is stored (blockscale.core.layout)
    parts: of how many matrices [n / parts, k], one below another, each matrix consists

    Under stochastic rounding the draw depends on the place in the stack; everything else is equal.
    Raises ValueError where the stack cannot have such a format: a learned codebook, which is one
    for all; rows that do not divide into parts; blocks that would reach into the next matrix.
    """
    if len(shape) < 2:
        raise ValueError(
            f"a stack of matrices has at least 2 dimensions, found shape {tuple(shape)}"
        )
    if len(shape) == 2 and parts == 1:
        return fmt
    if fmt.element.learned:
        raise ValueError(
            f"{fmt}: {fmt.element.name} is one table for a tensor, and each of the stacked "
            f"matrices needs its own: use an element with a fixed table, such as 'nf4'"
        )
    if parts < 1 or shape[-2] % parts:
        raise ValueError(f"{shape[-2]} rows cannot be divided into {parts} equal parts")
    return _changed(fmt, shape, lambda block, of: _stacked(block, of, parts, fmt), _of_matrices)


def of_matrix(fmt: Format, shape: Sequence[int]) -> Format:
    """The format of a stack -> that of one of its matrices [n, k], by its usual name."""
    return _changed(fmt, shape, _alone, Block.scale_shape)


def _changed(fmt: Format, shape: Sequence[int], change: Change, divided: Shape) -> Format:
    """The format with every block of it changed; the blocks of scales are over their own shape.

    divided: gives the shape of the scales that a block has in a tensor of a shape
    """
    shape = tuple(shape)
    scales = divided(fmt.block, shape)
    scale, offset = fmt.scale, fmt.offset
    if isinstance(scale, TwoLevel):
        scale = replace(scale, inner=_changed(scale.inner, scales, change, divided))
    if offset is not None:
        own = offset.block
        kind = offset.type
        if isinstance(kind, Format):
            kind = _changed(kind, divided(own or fmt.block, shape), change, divided)
        offset = Offset(kind, None if own is None else change(own, shape))
    return replace(fmt, block=change(fmt.block, shape), scale=scale, offset=offset)


def _of_matrices(block: Block, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the scales that a block of a matrix has in a stack of them."""
    return (*shape[:-2], *block.scale_shape(shape[-2:]))


def _stacked(block: Block, shape: Sequence[int], parts: int, fmt: Format) -> Block:
    """A block of a matrix [n, k] -> the same of a stack [..., n, k] of parts."""
    rows, columns = shape[-2] // parts or shape[-2], shape[-1]
    if block.flat:
        if block.strided or rows * columns % block.flat:
            raise ValueError(
                f"{fmt}: blocks of {block} would reach from one of the stacked matrices "
                f"[{rows}, {columns}] into the next: use 'group{block.flat}'"
            )
        return block
    high, wide = block.sizes_for(2)
    if parts > 1 and high > 1 and rows % high:
        raise ValueError(
            f"{fmt}: {rows} rows of a part of the matrix cannot be divided into blocks of "
            f"{high} rows"
        )
    if high == WHOLE and parts > 1:
        high = rows
    return _named(high, wide)


def _named(high: int, wide: int) -> Block:
    sizes = ["*" if size == WHOLE else str(size) for size in (high, wide)]
    return read_block(f"block{'x'.join(sizes)}")


def _alone(block: Block, shape: Sequence[int]) -> Block:
    """A block of a stack -> the same of one matrix [n, k], by the name that matrices use."""
    if block.flat:
        return block
    high, wide = block.sizes_for(len(shape))[-2:]
    whole_rows, whole_columns = (
        size in (WHOLE, n) for size, n in zip((high, wide), shape[-2:], strict=True)
    )
    if (whole_rows or shape[-2] == 1) and whole_columns:
        return read_block("tensor")
    return read_block("channel0") if high == 1 and wide == WHOLE else _named(high, wide)
