# SPDX-License-Identifier: BSD-3-Clause
"""What a block_size means: how a tensor is cut into blocks and where a block's numbers go."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor


class Split(NamedTuple):
    """A tensor cut into blocks, e.g. shape (4, 64) in blocks of (1, 32).

    view:      its shape with every divided dimension as count, size: (4, 2, 32)
    inside:    the dimensions of `view` that lie within a block: (2,)
    per_block: `view` with those set to 1, which broadcasts: (4, 2, 1)
    counts:    the number of blocks along each dimension: (4, 2)
    """

    view: tuple[int, ...]
    inside: tuple[int, ...]
    per_block: tuple[int, ...]
    counts: tuple[int, ...]

    @property
    def outside(self) -> tuple[int, ...]:
        """`view` without the dimensions inside of blocks."""
        return tuple(n for dim, n in enumerate(self.view) if dim not in self.inside)

    def ranges(self, x: Tensor, keepdim: bool) -> tuple[Tensor, Tensor]:
        """x [...] -> the smallest and the largest value of each block, [counts] with keepdim.

        Without it, dimensions that blocks cover are missing.
        """
        x = x.reshape(self.view)
        if not self.inside and x.numel() != 1:
            return x, x  # one block an element: given no dimensions, torch reduces over all
        low, high = x.amin(self.inside), x.amax(self.inside)
        return (low.reshape(self.counts), high.reshape(self.counts)) if keepdim else (low, high)

    def expand(self, param: Tensor, name: str) -> Tensor:
        """param, one number a block -> the same numbers [per_block].

        Raises ValueError unless the shape is that of the blocks, apart from dimensions of size 1.
        """
        if _without_ones(param.shape) != _without_ones(self.per_block):
            raise ValueError(
                f"{name} has shape {tuple(param.shape)}, but there are {self.counts} blocks: "
                f"give it that shape, with or without its dimensions of size 1"
            )
        return param.reshape(self.per_block)


def _without_ones(shape: Sequence[int]) -> list[int]:
    return [n for n in shape if n != 1]


def split_blocks(shape: Sequence[int], block_size: Sequence[int]) -> Split:
    """How a tensor of `shape` is cut into blocks of `block_size`, where -1 is a whole dimension.

    Raises ValueError for another number of entries, entries below 1, or blocks that do not divide.
    """
    if len(block_size) != len(shape):
        raise ValueError(
            f"block_size {tuple(block_size)} has {len(block_size)} entries, but the input has "
            f"shape {tuple(shape)}: give one entry for each dimension"
        )
    view: list[int] = []
    inside: list[int] = []
    per_block: list[int] = []
    counts: list[int] = []
    for dim, (n, size) in enumerate(zip(shape, block_size, strict=True)):
        if size == 1:
            view, per_block, counts = [*view, n], [*per_block, n], [*counts, n]
            continue
        inside.append(len(view))
        if size in (-1, n):
            view, per_block, counts = [*view, n], [*per_block, 1], [*counts, 1]
            continue
        _check_divides(shape, dim, size)
        inside[-1] += 1
        count = n // size
        view, per_block, counts = [*view, count, size], [*per_block, count, 1], [*counts, count]
    return Split(tuple(view), tuple(inside), tuple(per_block), tuple(counts))


def _check_divides(shape: Sequence[int], dim: int, size: int) -> None:
    n = shape[dim]
    if size < 1:
        raise ValueError(
            f"block_size has {size} for dimension {dim}: use a positive size, or -1 for all of it"
        )
    if n % size:
        raise ValueError(
            f"a block of {size} does not divide dimension {dim} of {tuple(shape)}: "
            f"pad it to {n + -n % size}, or use a block that divides {n}"
        )
