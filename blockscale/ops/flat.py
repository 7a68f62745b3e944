# SPDX-License-Identifier: BSD-3-Clause
"""Blocks over the flattened tensor, told as blocks within its rows where they are the same."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from blockscale.core.block import Block, read_block
from blockscale.core.format import Format
from blockscale.core.reference import QParams
from blockscale.core.scales.two_level import TwoLevel


def blocks_of(fmt: Format) -> Iterator[Block]:
    """Of elements, of scales and of offsets."""
    yield fmt.block
    if isinstance(fmt.scale, TwoLevel):
        inner = fmt.scale.inner
        yield inner.block
        if inner.offset is not None and inner.offset.block is not None:
            yield inner.offset.block
    if fmt.offset is not None:
        if fmt.offset.block is not None:
            yield fmt.offset.block
        if fmt.offset.inner is not None:
            yield fmt.offset.inner.block


def within_rows(fmt: Format, shape: Sequence[int]) -> Format:
    """The same, its flat blocks as groups or tiles where those hold the same elements in one order.

    So they do where a row holds whole blocks, or a block whole rows of a matrix.
    """
    flat, last = fmt.block.flat, shape[-1] if shape else 1
    alone = [each.name for each in blocks_of(fmt)][1:] in ([], ["tensor"])
    if not flat or fmt.block.strided or not last or not alone:
        return fmt
    if len(shape) == 1 or last % flat == 0:
        return replace(fmt, block=read_block(f"group{flat}"))
    if len(shape) == 2 and flat % last == 0:
        return replace(fmt, block=read_block(f"tile{flat // last}x{last}"))
    return fmt


def in_blocks_of(qparams: QParams, fmt: Format, shape: Sequence[int]) -> QParams:
    """The parts of `within_rows(fmt, shape)` -> those of `fmt`, or the other way round: the same
    numbers in the same order."""
    shapes = {part: own for part, (_, own) in fmt.stored(shape).items()}
    parts = {part: getattr(qparams, part).reshape(own) for part, own in shapes.items()}
    return QParams(**parts)
