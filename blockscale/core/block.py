# SPDX-License-Identifier: BSD-3-Clause
"""Block layout: which elements share one scale (docs/numerics.md, section 1.2).

A stored scale has the rank of the tensor it scales, and its shape says the layout: where blocks
divide, `block[i] = x.shape[i] // scale.shape[i]`. So x [8, 64] has scale [1, 1] per tensor, [8, 1]
per token, [8, 2] in groups of 32. A last block may be partial; then the Format's block decides.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core.arithmetic.sums import in_units, mean_of, unit_exponent
from blockscale.core.untrusted import QUOTED, quote, shown

WHOLE = 0  # a block size: all of this dimension
LARGEST = 2**30  # elements of a block along a dimension; it is cut to the dimension anyway
_RANKS = 64  # dimensions that a tensor of torch can have
SPELLINGS = (
    "tensor, channelA, token, groupN, groupN@A, tileRxC, blockAxBxC of any rank (`*` is a whole "
    "dimension), flatN, flatN@0"
)


@dataclass(frozen=True)
class Block:
    """Block sizes by dimension, of which only those that are not `rest` are listed.

    `sizes` holds (dimension, size); every other dimension has size `rest`, 1 or WHOLE.
    flat: of `flatN`, how many elements of the flattened tensor share a scale, whatever its rows;
        else 0
    strided: of `flatN@0`, the elements of a block lie far apart: those of block j are j,
        j + count, j + 2 count, …, where count is the number of blocks
    """

    name: str
    sizes: tuple[tuple[int, int], ...] = ()
    rest: int = 1
    flat: int = 0
    strided: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def static(self) -> bool:
        """Whether a scale can be given beforehand: none of it depends on the number of rows."""
        return self.name in ("tensor", "channel-1")

    def sizes_for(self, rank: int) -> tuple[int, ...]:
        """The block's size along each of `rank` dimensions; WHOLE is all of one.

        Raises ValueError for dimensions that are not there, and for a block over the flattened
        tensor, which has no size along any.
        """
        if self.flat:
            raise ValueError(
                f"blocks of {self.name!r} run over the flattened tensor and have no size "
                f"along a dimension: use 'group{self.flat}' where blocks must stay within rows"
            )
        sizes = [self.rest] * rank
        for dim, size in self.sizes:
            if not -rank <= dim < rank:
                raise ValueError(
                    f"block {self.name!r} needs dimension {dim}, but the tensor has {rank}: "
                    f"use a block that fits, such as 'tensor'"
                )
            sizes[dim] = size
        return tuple(sizes)

    def scale_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the scale of a tensor of `shape`."""
        if self.flat:
            return self._flat_shape(shape)
        return block_counts(shape, self.sizes_for(len(shape)))

    def _flat_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        if not shape:
            raise ValueError(
                f"block {self.name!r} needs a tensor of at least one dimension: use 'tensor' "
                "for a scalar"
            )
        size = prod(shape)
        if self.strided and size % self.flat:
            raise ValueError(
                f"block {self.name!r} divides the tensor, but {tuple(shape)} has {size} elements: "
                f"pad it, or use 'flat{self.flat}', whose last block may be partial"
            )
        return (*[1] * (len(shape) - 1), (size + self.flat - 1) // self.flat)

    def expand(self, scale: Tensor, shape: Sequence[int]) -> Tensor:
        """Scale [...] -> a tensor that broadcasts to `shape`, each scale over its block."""
        if self.strided:
            return scale.reshape(1, -1).expand(self.flat, -1).reshape(tuple(shape))
        if self.flat:
            every = repeated(scale.reshape(-1), self.flat, 0, prod(shape))
            return every.reshape(tuple(shape))
        for dim, size in enumerate(self.sizes_for(len(shape))):
            if size > 1:
                scale = repeated(scale, size, dim, shape[dim])
        return scale


def repeated(parts: Tensor, size: int, dim: int, n: int) -> Tensor:
    """parts, one a block of `size` along `dim` -> one each of the n elements.

    A partial last block is looked up: where a repeated tensor is cut to a size that the block does
    not divide, Inductor's C++ leaves the rest out (torch 2.13, `try_loop_split`).
    """
    if isinstance(n, int) and n % size == 0:
        return parts.repeat_interleave(size, dim)
    return parts.index_select(dim, torch.arange(n, device=parts.device) // size)


def block_counts(shape: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    """How many blocks of `sizes` (Block.sizes_for) a tensor of `shape` has along each dimension."""
    return tuple(
        1 if size == WHOLE else (n if size == 1 else (n + size - 1) // size)
        for n, size in zip(shape, sizes, strict=True)
    )


def read_block(name: str) -> Block:
    """The block spelled `name`. Raises ValueError with the list of what there is."""
    if name == "tensor":
        return Block(name, (), WHOLE)
    if name == "token":
        return Block(name, ((-1, WHOLE),))
    if channel := re.fullmatch(r"channel(-?[0-9]+)", name):
        dim = _dim(channel[1])
        return Block(f"channel{dim}", ((dim, 1),), WHOLE)
    if group := re.fullmatch(r"group([1-9][0-9]*)(?:@(-?[0-9]+))?", name):
        size, dim = _size(group[1]), _dim(group[2] or "-1")
        return Block(f"group{size}" + (f"@{dim}" if dim != -1 else ""), ((dim, size),))
    if tile := re.fullmatch(r"tile([1-9][0-9]*)x([1-9][0-9]*)", name):
        rows, columns = _size(tile[1]), _size(tile[2])
        return Block(f"tile{rows}x{columns}", ((-2, rows), (-1, columns)))
    if flat := re.fullmatch(r"flat([1-9][0-9]*)(@0)?", name):
        size = _size(flat[1])
        return Block(f"flat{size}{flat[2] or ''}", (), 1, size, bool(flat[2]))
    if sizes := re.fullmatch(r"block((?:[1-9][0-9]*|\*)(?:x(?:[1-9][0-9]*|\*))*)", name):
        return _block(sizes[1].split("x"))
    raise ValueError(
        f"unknown block {quote(name)}; choose from {SPELLINGS} (N, R, C, A, B at least 1)"
    )


def _size(text: str) -> int:
    """A block's size along a dimension. Raises ValueError above the largest."""
    if len(text) > len(str(LARGEST)) or int(text) > LARGEST:
        raise ValueError(
            f"a block of {shown(text, QUOTED)} elements is too large: at most {LARGEST}"
        )
    return int(text)


def _dim(text: str) -> int:
    """A dimension, counted from either end. Raises ValueError for one that no tensor has."""
    if len(text) > 3 or not -_RANKS <= int(text) < _RANKS:
        raise ValueError(f"no dimension {shown(text, QUOTED)}: a tensor has at most {_RANKS}")
    return int(text)


def _block(sizes: list[str]) -> Block:
    """`blockAxBxC`: sizes along the last dimensions. One block has one name: the shortest."""
    while len(sizes) > 1 and sizes[0] == "1":
        sizes = sizes[1:]  # as it is in all dimensions before
    if len(sizes) == 1:
        return read_block("token" if sizes == ["*"] else f"group{sizes[0]}")
    if len(sizes) == 2 and "*" not in sizes:
        return read_block(f"tile{'x'.join(sizes)}")
    if len(sizes) > _RANKS:
        raise ValueError(f"a block has at most {_RANKS} dimensions, got {len(sizes)}")
    numbers = [WHOLE if size == "*" else _size(size) for size in sizes]
    dims = range(-len(sizes), 0)
    return Block(f"block{'x'.join(sizes)}", tuple(zip(dims, numbers, strict=True)))


def block_named(sizes: Sequence[int]) -> Block:
    """The block of these sizes along the last dimensions, WHOLE for all of one."""
    return _block(["*" if size == WHOLE else str(size) for size in sizes])


def block_of(shape: Sequence[int], scale: Sequence[int]) -> Block:
    """The block whose scale of a tensor of `shape` has the shape `scale`, which divides it.

    Raises ValueError if it does not divide: then a block's size is not known.
    """
    if len(scale) != len(shape) or any(
        count < 1 or n % count for n, count in zip(shape, scale, strict=True)
    ):
        raise ValueError(
            f"a scale of shape {tuple(scale)} does not divide a tensor of shape {tuple(shape)} "
            f"into blocks"
        )
    if all(count == 1 for count in scale):
        return read_block("tensor")
    sizes = [n // count for n, count in zip(shape, scale, strict=True)]
    whole = [count == 1 and n != 1 for n, count in zip(shape, scale, strict=True)]
    if sum(whole) == len(shape) - 1 and sizes[whole.index(False)] == 1:
        return read_block(f"channel{whole.index(False)}")
    return block_named(
        [WHOLE if all_of_it else size for size, all_of_it in zip(sizes, whole, strict=True)]
    )


# A tensor cut into blocks, and what their scales are chosen from (docs/numerics.md, 3.1, 3.2).


class Blocks:
    """A tensor cut into blocks: what their scales are chosen from, one number for each block.

    NaN and infinities are left out of everything but `poisoned`, which says where they are.
    """

    def __init__(self, x: Tensor, block: Block):
        """x [...] float32."""
        self.shape = block.scale_shape(x.shape)
        if block.strided and x.numel():
            x, block = x.reshape(block.flat, -1), Block("channel1", ((1, 1),), WHOLE)
        elif block.flat:
            x, block = x.reshape(-1), read_block(f"group{block.flat}")
        self._parts = block.scale_shape(x.shape)
        self._sizes = self._within(block.sizes_for(x.ndim), x)
        self._x = x
        self._empty = x.numel() == 0

    @staticmethod
    def _within(sizes: Sequence[int], x: Tensor) -> tuple[int, ...]:
        """Sizes of blocks, none larger than its dimension: what is beyond would be padding."""
        if torch.compiler.is_compiling():  # a comparison would fix the sizes of a program
            return tuple(sizes)
        pairs = zip(sizes, x.shape, strict=True)
        return tuple(min(size, max(n, 1)) if isinstance(n, int) else size for size, n in pairs)

    def _split(self, x: Tensor) -> Tensor:
        """[n...] -> [count, size, count, size, ...], padded with zeros.

        Not of bools: Inductor's C++ of a padded one does not compile (torch 2.13).
        """
        padding: list[int] = []
        for n, size in zip(reversed(x.shape), reversed(self._sizes), strict=True):
            padding += [0, -n % size if size > 1 else 0]
        if any(size > 1 for size in self._sizes):
            x = F.pad(x, padding)
        split: list[int] = []
        for n, size in zip(x.shape, self._sizes, strict=True):
            split += [1, n] if size == WHOLE else [n // size, size]
        return x.reshape(split)

    @cached_property
    def _dims(self) -> tuple[int, ...]:
        return tuple(range(1, 2 * len(self._sizes), 2))

    @cached_property
    def _finite(self) -> Tensor:
        return self._split(self._x.isfinite().to(torch.uint8)).to(torch.bool)

    @cached_property
    def _values(self) -> Tensor:
        return self._split(torch.where(self._x.isfinite(), self._x, 0.0))

    def _zeros(self) -> Tensor:
        return self._x.new_zeros(self.shape)

    def range(self, *, bare: bool = False) -> tuple[Tensor, Tensor]:
        """The smallest and largest finite value of each block, widened to hold 0.

        bare: not widened; 0 and 0 for a block without a finite value
        """
        if self._empty:
            return self._zeros(), self._zeros()
        if bare:
            low = torch.where(self._finite, self._values, torch.inf).amin(self._dims)
            high = torch.where(self._finite, self._values, -torch.inf).amax(self._dims)
            none = low > high
            low, high = low.masked_fill(none, 0.0), high.masked_fill(none, 0.0)
            low = low + 0.0  # of 0 and -0 in a block either may come out: the offset is +0
        else:
            low = self._values.amin(self._dims).clamp(max=0.0)
            high = self._values.amax(self._dims).clamp(min=0.0)
        return low.reshape(self.shape), high.reshape(self.shape)

    def poisoned(self) -> Tensor:
        """Whether each block holds a NaN or an infinity."""
        if self._empty:
            return self._zeros().to(torch.bool)
        odd = self._split((~self._x.isfinite()).to(torch.uint8))
        return odd.amax(self._dims).to(torch.bool).reshape(self.shape)

    def mean_magnitude(self, above: Tensor | None = None) -> Tensor:
        """The mean of |x| in each block, over |x| > `above` if given: one per block.

        Summed as integers, so that no order of summation changes the bits (docs/numerics.md, 3.2).
        """
        if self._empty:
            return self._zeros()
        power = unit_exponent(self._values.abs().amax(self._dims)).reshape(self.shape)
        total, count = self.magnitudes(power, above)
        return mean_of(total, count, power)

    def magnitudes(self, power: Tensor, above: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The sum of |x| in each block, over |x| > `above` if given, and how many those are: int64.

        power: of the unit that is counted in (core.arithmetic.sums), one per block
        """
        if self._empty:
            return (none := torch.zeros_like(power, dtype=torch.int64)), none
        size = self._values.abs()
        choice = self._finite
        if above is not None:
            choice = choice & (size > self._per_block(above))
        total = torch.where(choice, in_units(size, self._per_block(power)), 0).sum(self._dims)
        return total.reshape(self.shape), choice.sum(self._dims).reshape(self.shape)

    def sum(self) -> Tensor:
        """The sum of each block, by halves: the same additions in the same order on every device.

        Of numbers of any dtype; NaN and infinities count as what they are.
        """
        if self._empty:
            return self._zeros()
        parts = self._split(self._x)
        counts = tuple(range(0, parts.ndim, 2))
        rows = parts.permute((*counts, *self._dims)).flatten(len(counts)) if counts else parts
        rows = rows.reshape((*rows.shape[: len(counts)], -1))
        while rows.shape[-1] > 1:
            half = -(-rows.shape[-1] // 2)
            rows = F.pad(rows, (0, 2 * half - rows.shape[-1]))
            rows = rows[..., :half] + rows[..., half:]
        return rows.reshape(self.shape)

    def extent(self) -> tuple[Tensor, Tensor, Tensor]:
        """As `range`, and the mean of |x| in float32, whose last bits depend on the order of sums.

        Nothing is kept for another call, so that Dynamo can trace this (no `cached_property`).
        """
        if self._empty:
            return self._zeros(), self._zeros(), self._zeros()
        finite, dims = self._x.isfinite(), tuple(range(1, 2 * len(self._sizes), 2))
        values = self._split(torch.where(finite, self._x, 0.0))
        count = self._split(finite.to(self._x.dtype)).sum(dims).clamp(min=1)
        low, high = values.amin(dims).clamp(max=0.0), values.amax(dims).clamp(min=0.0)
        mean = values.abs().sum(dims) / count
        return low.reshape(self.shape), high.reshape(self.shape), mean.reshape(self.shape)

    def _per_block(self, scale: Tensor) -> Tensor:
        """One number per block, shaped to broadcast with the split tensor."""
        return scale.reshape([part for count in self._parts for part in (count, 1)])
