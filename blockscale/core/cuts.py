# SPDX-License-Identifier: BSD-3-Clause
"""Where a quantized tensor may be cut, and how scales are chosen over cuts (docs/scale.md).

Every part of a quantized tensor (codes, scale, outer scale, zero point, offset, table) is shared
along a dimension or cut with it. A cut is exact, and moves no bit, on multiples of a `unit`; any
other cut refines the blocks: `group128` cut at 192 is `group64` whose scales are repeated, which
means the same values. Scales of a tensor that is cut before they are chosen come from ranges that
merge by minimum and maximum, and from sums of integers, so that who had which part, and in which
order parts merged, changes no bit. Slabs of a file, ranks of a mesh and shards are all such cuts.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import gcd, lcm, prod
from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.core.block import WHOLE, Block, block_named, read_block
from blockscale.core.format import Format
from blockscale.core.operand import Operand, operand
from blockscale.core.pack import packed_size
from blockscale.core.reference import QParams
from blockscale.core.scales import Offset, TwoLevel

Sizes = tuple[int, ...]  # of a block, along each dimension of a tensor; WHOLE for all of one


class Share(NamedTuple):
    """One part of a tensor that is cut along a dimension, and where all others are.

    shape: of the whole tensor
    dim: the dimension that is cut, counted from the first
    places: where it is cut, from 0 to its size, in order; two that are equal hold nothing
    number: which of the parts it is, from 0
    """

    shape: tuple[int, ...]
    dim: int
    places: tuple[int, ...]
    number: int

    @property
    def start(self) -> int:
        """The first index of the dimension that belongs to it."""
        return self.places[self.number]

    @property
    def stop(self) -> int:
        """The first one after it that does not."""
        return self.places[self.number + 1]

    @property
    def own_shape(self) -> tuple[int, ...]:
        """The shape of this part."""
        return (*self.shape[: self.dim], self.stop - self.start, *self.shape[self.dim + 1 :])


def share(shape: Sequence[int], dim: int, places: Sequence[int], number: int) -> Share:
    """A Share, checked. Raises ValueError for dimensions and places that are not there."""
    shape, places, dim = tuple(shape), tuple(places), _dim(shape, dim)
    n = shape[dim]
    if len(places) < 2 or places[0] != 0 or places[-1] != n or list(places) != sorted(places):
        raise ValueError(
            f"dimension {dim} of {shape} is cut at places from 0 to {n} in order, found {places}"
        )
    if not 0 <= number < len(places) - 1:
        raise ValueError(f"expected a part from 0 to {len(places) - 2}, found {number}")
    return Share(shape, dim, places, number)


def _dim(shape: Sequence[int], dim: int) -> int:
    if not -len(shape) <= dim < len(shape):
        raise ValueError(f"no dimension {dim}: the tensor has {len(shape)}, so it cannot be cut")
    return dim % len(shape)


def deal(n: int, count: int, unit: int = 1) -> tuple[int, ...]:
    """Where n indices are cut into `count` parts of whole units, as torch.chunk deals elements:
    places [count + 1]. The last parts may be smaller, or empty."""
    units = (n + unit - 1) // unit
    each = (units + count - 1) // count * unit
    return tuple(min(i * each, n) for i in range(count + 1))


# What shares one entry of each part.


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


def can_be_cut(fmt: Format) -> bool:
    """Whether a slab of a tensor has scales of its own: blocks have sizes along its dimensions."""
    return not any(block.flat for block in blocks_of(fmt))


def block_sizes(fmt: Format, rank: int) -> dict[str, Sizes]:
    """{part: sizes of what shares one entry of it}, of all that stands beside the codes but for a
    learned table, which everything shares.

    For formats that can be cut (`can_be_cut`).
    """
    own, scale, offset = fmt.block.sizes_for(rank), fmt.scale, fmt.offset
    sizes = {"scale": own, "zero_point": own}
    if isinstance(scale, TwoLevel):
        inner = scale.inner
        sizes["outer"] = _above(own, inner.block)
        if inner.offset is not None:
            sizes["scale_offset"] = _above(own, inner.offset.block or inner.block)
    if offset is not None:
        sizes["offset"] = (offset.block or fmt.block).sizes_for(rank)
        if offset.inner is not None:
            sizes["offset_outer"] = _above(sizes["offset"], offset.inner.block)
    return {part: sizes[part] for part in fmt.parts if part in sizes}


def _above(sizes: Sizes, block: Block) -> Sizes:
    """Elements that share an entry where those of `sizes` share one, and these in blocks again."""
    counts = block.sizes_for(len(sizes))
    return tuple(a * b for a, b in zip(sizes, counts, strict=True))  # WHOLE is 0: it stays


class CutLine(NamedTuple):
    """A cut dimension as a line of elements, of which each part has an entry for so many.

    axis: the dimension of the parts beside the codes that is cut
    each: elements that one index of the cut dimension stands for on the line: 1, but for blocks of
        the flattened tensor, whose line it is
    sizes: {part: elements that share an entry}; WHOLE for all
    """

    axis: int
    each: int
    sizes: dict[str, int]


def line_of(fmt: Format, shape: tuple[int, ...], dim: int) -> CutLine:
    """Raises ValueError for formats whose blocks do not lie along the dimension."""
    rank, table = len(shape), {"book": WHOLE} if fmt.element.learned else {}
    if can_be_cut(fmt):
        sizes = {part: own[dim] for part, own in block_sizes(fmt, rank).items()}
        return CutLine(dim, 1, sizes | table)
    if fmt.block.strided:
        raise ValueError(
            f"{fmt}: the elements of a block of {fmt.block} lie far apart, so that a cut goes "
            "through every block: quantize in blocks of rows, such as 'group64'"
        )
    if not fmt.block.flat or prod(shape[:dim]) != 1:
        reason = (
            "runs over the flattened tensor" if fmt.block.flat else "has scales over such blocks"
        )
        raise ValueError(
            f"{fmt}: it {reason}, and a cut along dimension {dim} of {shape} goes through "
            f"the blocks: cut along dimension 0, or quantize in groups, such as 'group64'"
        )
    flattened = _above_flat(fmt)
    return CutLine(rank - 1, prod(shape[dim + 1 :]), flattened | table)


def _above_flat(fmt: Format) -> dict[str, int]:
    """As block_sizes, of a flat block: everything beside the codes lies along one dimension."""

    def above(size: int, block: Block) -> int:
        return size * (block.flat or block.sizes_for(2)[1])

    row = replace(fmt, block=read_block(f"group{fmt.block.flat}"))
    if can_be_cut(row):
        return {part: own[1] for part, own in block_sizes(row, 2).items()}
    own, sizes = fmt.block.flat, {"scale": fmt.block.flat, "zero_point": fmt.block.flat}
    if isinstance(fmt.scale, TwoLevel):
        inner = fmt.scale.inner
        sizes["outer"] = above(own, inner.block)
        if inner.offset is not None:
            sizes["scale_offset"] = above(own, inner.offset.block or inner.block)
    if fmt.offset is not None:
        block = fmt.offset.block or fmt.block
        sizes["offset"] = block.flat or block.sizes_for(2)[1]
        if fmt.offset.inner is not None:
            sizes["offset_outer"] = above(sizes["offset"], fmt.offset.inner.block)
    return {part: sizes[part] for part in fmt.parts if part in sizes}


def _in_a_byte(fmt: Format) -> int:
    """How many codes along the last dimension no cut can part: those that share bytes."""
    return 8 // gcd(8, fmt.bits)


def placements(fmt: Format, shape: Sequence[int], dim: int) -> dict[str, int | None]:
    """{part: its dimension that is cut, or None for what every share has whole} of a tensor of
    `shape` in a format, cut along `dim`; the codes are the part `codes`.

    Raises ValueError for a dimension that is not there, and for blocks that no cut along it can
    respect: those of `flatN@0`, and of `flatN` along other dimensions than the first.
    """
    dim = _dim(shape, dim)
    line = line_of(fmt, tuple(shape), dim)
    beside = {part: None if size == WHOLE else line.axis for part, size in line.sizes.items()}
    return {"codes": dim, **{part: beside[part] for part in fmt.parts}}


def unit(fmt: Format, shape: Sequence[int], dim: int) -> int:
    """The indices of `dim` whose multiples are cuts between blocks, and between bytes of codes.

    Raises as `placements`.
    """
    dim = _dim(shape, dim)
    line = line_of(fmt, tuple(shape), dim)
    sizes = [size // gcd(size, line.each) for size in line.sizes.values() if size != WHOLE]
    return lcm(*sizes, _in_a_byte(fmt) if dim == len(shape) - 1 else 1)


# A quantized tensor, cut.


def cut(q: Operand, dim: int, start: int, stop: int) -> Operand:
    """Indices [start, stop) along `dim` of a quantized tensor, with the values that they have.

    On multiples of `unit` its format stays; elsewhere blocks are refined (`refine`). Codes and
    scales are views where the cut leaves them as they are. Raises ValueError as `placements`, and
    where the cut would part codes that share a byte.
    """
    shape = q.shape
    dim = _dim(shape, dim)
    n = shape[dim]
    if not 0 <= start <= stop <= n:
        raise ValueError(f"no indices {start} to {stop} along dimension {dim} of {shape}")
    fmt, own, size = q.format, Share(shape, dim, (0, start, stop, n), 1), q.size
    if dim == len(shape) - 1:
        _check_bytes(fmt, own)
        first = packed_size(fmt.element, start)
        count = packed_size(fmt.element, stop) - first if start < stop else 0
        codes, size = q.codes.narrow(-1, first, count), stop - start
    else:
        codes = q.codes.narrow(dim, start, stop - start)
    return operand(codes, parts_of(q.qparams, fmt, own), refine(fmt, own), size)


def check_cut(fmt: Format, own: Share) -> None:
    """Raise ValueError, as `cut` would, where a share of a tensor in a format cannot be cut out."""
    refine(fmt, own)
    if own.dim == len(own.shape) - 1:
        _check_bytes(fmt, own)


def _check_bytes(fmt: Format, own: Share) -> None:
    together, n = _in_a_byte(fmt), own.shape[own.dim]
    for place in (own.start, own.stop):
        if place % together and place != n:
            raise ValueError(
                f"{fmt}: a cut at {place} of {n} parts {together} codes that share bytes: cut at "
                f"multiples of {together}"
            )


def _refined_sizes(fmt: Format, own: Share) -> dict[str, int]:
    """{part: elements that share an entry once this share is cut out}."""
    line = line_of(fmt, own.shape, own.dim)
    start, stop = own.start * line.each, own.stop * line.each
    n = own.shape[own.dim] * line.each

    def size(of: int) -> int:
        if of == WHOLE or start == stop:
            return of
        return gcd(of, start, 0 if stop == n else stop)

    return {part: size(of) for part, of in line.sizes.items()}


def refine(fmt: Format, own: Share) -> Format:
    """The format of a share of a tensor in `fmt`: the same where cuts are between blocks, else
    with blocks so small that the cuts are between them."""
    line, sizes = line_of(fmt, own.shape, own.dim), _refined_sizes(fmt, own)
    if sizes == line.sizes:
        return fmt

    def resized(block: Block, part: str, below: str = "") -> Block:
        """A block that belongs to a part; its sizes count entries of the part `below`, if any."""
        if sizes[part] == WHOLE:
            return block
        size = sizes[part] // (sizes[below] if below else 1)
        if block.flat:
            return read_block(f"flat{size}")
        old = block.sizes_for(len(own.shape))
        at = line.axis
        return block if old[at] == size else block_named((*old[:at], size, *old[at + 1 :]))

    scale = fmt.scale
    if isinstance(scale, TwoLevel):
        inner, more = scale.inner, scale.inner.offset
        if more is not None and more.block is not None:
            more = replace(more, block=resized(more.block, "scale_offset", "scale"))
        block = resized(inner.block, "outer", "scale")
        scale = replace(scale, inner=replace(inner, block=block, offset=more))
    offset = fmt.offset and _refined_offset(fmt.offset, resized)
    return replace(fmt, block=resized(fmt.block, "scale"), scale=scale, offset=offset)


def _refined_offset(offset: "Offset[Format]", resized: Callable[..., Block]) -> "Offset[Format]":
    kind, block = offset.type, offset.block
    if isinstance(kind, Format):
        kind = replace(kind, block=resized(kind.block, "offset_outer", "offset"))
    return replace(offset, type=kind, block=block and resized(block, "offset"))


def parts_of(qparams: QParams, fmt: Format, own: Share) -> QParams:
    """The parts beside the codes of a whole tensor in `fmt` -> those of a share, as the format
    `refine` has them."""
    line, sizes = line_of(fmt, own.shape, own.dim), _refined_sizes(fmt, own)
    start, stop = own.start * line.each, own.stop * line.each

    def part(name: str, whole: Tensor | None) -> Tensor | None:
        if whole is None or line.sizes[name] == WHOLE:
            return whole
        old, new = line.sizes[name], sizes[name]
        first = start // new
        count = -(-stop // new) - first if stop > start else 0
        if old == new:
            return whole.narrow(line.axis, first, count)
        entries = torch.arange(first, first + count, device=whole.device) * new // old
        return whole.index_select(line.axis, entries)

    return QParams(**{name: part(name, each) for name, each in qparams._asdict().items()})  # type: ignore[arg-type]
