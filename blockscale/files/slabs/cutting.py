# SPDX-License-Identifier: BSD-3-Clause
"""How a tensor is cut into slabs, and which scales belong to each.

A slab is some rows of dimension 0 as stored. Where one such row is itself too much, as one matrix
of a stack may be, it is some rows of dimension 1 of one matrix. Either way its bytes lie together.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import lcm, prod
from typing import NamedTuple

import torch

from blockscale.core.block import WHOLE, Block
from blockscale.core.cuts import Sizes, blocks_of, can_be_cut
from blockscale.core.format import Format
from blockscale.core.reference import QParams
from blockscale.core.shared_scales import Region

SLAB = 1 << 17  # elements; temporaries of the reference take up to 150 bytes for each
BY_KERNEL = 8  # times as many go to a kernel at once, beside which only codes take memory


class Slab(NamedTuple):
    """Indices [start, stop) of the dimension that is cut, and which matrix of a stack it is of."""

    start: int
    stop: int
    matrix: int = 0

    @property
    def rows(self) -> int:
        """How many indices these are."""
        return self.stop - self.start

    def part(self, first: int, count: int) -> "Slab":
        """`count` of its indices, from its own `first` on."""
        return Slab(self.start + first, self.start + first + count, self.matrix)


@dataclass(frozen=True)
class Cuts:
    """The slabs of a tensor of `shape`: `rows` of dimension `dim`, 0 or 1, to each."""

    shape: tuple[int, ...]
    dim: int
    rows: int

    @property
    def count(self) -> int:
        """The size of the dimension that is cut; a tensor of rank 0 has one row."""
        return self.shape[self.dim] if self.shape else 1

    @property
    def slabs(self) -> list[Slab]:
        """Every slab, in order; one that is empty where there are no rows."""
        starts = range(0, self.count, self.rows) if self.count else (0,)
        matrices = range(self.shape[0]) if self.dim else (0,)
        return [Slab(a, min(a + self.rows, self.count), m) for m in matrices for a in starts]

    @property
    def elements(self) -> int:
        """Of the largest slab."""
        return min(self.rows, self.count) * prod(self.shape[self.dim + 1 :])

    def unit(self, blocks: Iterable[Sizes]) -> int:
        """How many indices hold whole blocks, of those that have a size along this dimension."""
        if not self.shape:
            return 1
        return lcm(*(sizes[self.dim] for sizes in blocks if sizes[self.dim] != WHOLE))

    def spans(self, sizes: Sizes) -> bool:
        """Whether a block of `sizes` reaches from one slab into another."""
        if self.dim and sizes[0] == WHOLE:
            return True
        return self.count > self.rows and sizes[self.dim] == WHOLE

    def region(self, slab: Slab, sizes: Sizes) -> Region:
        """The blocks of `sizes` that a slab has a part of."""
        if not self.shape:
            return ()
        size = sizes[self.dim]
        own = slice(0, 1) if size == WHOLE else slice(slab.start // size, -(-slab.stop // size))
        if not self.dim:
            return (own,)
        matrix = 0 if sizes[0] == WHOLE else slab.matrix // sizes[0]
        return slice(matrix, matrix + 1), own


def cut_slabs(shape: tuple[int, ...], blocks: Iterable[Sizes], elements: int) -> Cuts:
    """Cut a tensor into slabs of about `elements`, and no block that does not span them all."""
    blocks = list(blocks)
    if len(shape) < 2:  # codes of a vector are packed along its rows: it is one slab
        return Cuts(shape, 0, max(prod(shape), 1))
    if not prod(shape):  # nothing to cut, however many rows it has
        return Cuts(shape, 0, max(shape[0], 1))
    tall = any(sizes[0] > 1 for sizes in blocks)  # a block needs several matrices
    deep = len(shape) > 2 and prod(shape[1:]) > elements
    dim = 1 if shape[0] and deep and not tall else 0
    unit = lcm(*(sizes[dim] for sizes in blocks if sizes[dim] != WHOLE))
    rows = max(elements // max(prod(shape[dim + 1 :]), 1), 1)
    return Cuts(shape, dim, max(rows // unit, 1) * unit)


def flat_shape(shape: tuple[int, ...], fmt: Format) -> tuple[int, ...]:
    """`shape` with its leading dimensions as one, where no block can tell the difference.

    So a stack of matrices in groups along the last dimension goes row by row, not matrix by matrix.
    """
    if len(shape) < 3 or not can_be_cut(fmt):
        return shape
    if not all(_ignores_leading(block, len(shape)) for block in blocks_of(fmt)):
        return shape
    return (prod(shape[:-1]), shape[-1])


def _ignores_leading(block: Block, rank: int) -> bool:
    *leading, last = block.sizes_for(rank)
    same = all(dim in (-1, -2) for dim, _ in block.sizes)  # what a block of rank 2 can name, too
    return same and (set(leading) == {1} or {*leading, last} == {WHOLE})


def join(each: Iterable[QParams]) -> QParams:
    """The parts of matrices that follow each other in a stack, as those of the stack."""
    parts = zip(*each, strict=True)
    return QParams(*(None if one[0] is None else torch.cat(one) for one in parts))  # type: ignore[arg-type]
