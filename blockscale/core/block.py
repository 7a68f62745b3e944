"""Block layout: which elements share one scale (docs/numerics.md, section 1.2).

A stored scale has the rank of the tensor it scales, and its shape says the layout: where blocks
divide, `block[i] = x.shape[i] // scale.shape[i]`. So x [8, 64] has scale [1, 1] per tensor, [8, 1]
per token, [8, 2] in groups of 32. A last block may be partial; then the Format's block decides.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core.arithmetic.means import in_units, mean_of, unit_exponent

WHOLE = 0  # a block size: all of this dimension
SPELLINGS = "tensor, channelA, token, groupN, groupN@A, tileRxC"


@dataclass(frozen=True)
class Block:
    """Block sizes by dimension, of which only those that are not `rest` are listed.

    `sizes` holds (dimension, size); every other dimension has size `rest`, 1 or WHOLE.
    """

    name: str
    sizes: tuple[tuple[int, int], ...] = ()
    rest: int = 1

    def __str__(self) -> str:
        return self.name

    @property
    def static(self) -> bool:
        """Whether a scale can be given beforehand: none of it depends on the number of rows."""
        return self.name in ("tensor", "channel-1")

    def sizes_for(self, rank: int) -> tuple[int, ...]:
        """The block's size along each of `rank` dimensions; WHOLE is all of one."""
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
        return divided(shape, self.sizes_for(len(shape)))

    def expand(self, scale: Tensor, shape: Sequence[int]) -> Tensor:
        """Scale [...] -> a tensor that broadcasts to `shape`, each scale over its block."""
        for dim, size in enumerate(self.sizes_for(len(shape))):
            if size > 1:
                scale = scale.repeat_interleave(size, dim).narrow(dim, 0, shape[dim])
        return scale


def divided(shape: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
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
        return Block(f"channel{int(channel[1])}", ((int(channel[1]), 1),), WHOLE)
    if group := re.fullmatch(r"group([1-9][0-9]*)(?:@(-?[0-9]+))?", name):
        size, dim = int(group[1]), int(group[2] or -1)
        return Block(f"group{size}" + (f"@{dim}" if dim != -1 else ""), ((dim, size),))
    if tile := re.fullmatch(r"tile([1-9][0-9]*)x([1-9][0-9]*)", name):
        rows, columns = int(tile[1]), int(tile[2])
        return Block(f"tile{rows}x{columns}", ((-2, rows), (-1, columns)))
    raise ValueError(f"no block {name!r}; there are {SPELLINGS} (N, R, C at least 1)")


class Blocks:
    """A tensor cut into blocks: what their scales are chosen from, one number for each block.

    NaN and infinities are left out of everything but `poisoned`, which says where they are.
    """

    def __init__(self, x: Tensor, block: Block):
        """x [...] float32."""
        self.shape = block.scale_shape(x.shape)
        self._sizes = block.sizes_for(x.ndim)
        self._x = x
        self._empty = x.numel() == 0

    def _split(self, x: Tensor) -> Tensor:
        """[n...] -> [count, size, count, size, ...], padded with zeros (False)."""
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
        return self._split(self._x.isfinite())

    @cached_property
    def _values(self) -> Tensor:
        return self._split(torch.where(self._x.isfinite(), self._x, 0.0))

    def _zeros(self) -> Tensor:
        return self._x.new_zeros(self.shape)

    def range(self) -> tuple[Tensor, Tensor]:
        """The smallest and largest finite value of each block, widened to hold 0."""
        if self._empty:
            return self._zeros(), self._zeros()
        low = self._values.amin(self._dims).clamp(max=0.0)
        high = self._values.amax(self._dims).clamp(min=0.0)
        return low.reshape(self.shape), high.reshape(self.shape)

    def poisoned(self) -> Tensor:
        """Whether each block holds a NaN or an infinity."""
        if self._empty:
            return self._zeros().to(torch.bool)
        odd = self._split(~self._x.isfinite())
        return odd.to(torch.uint8).amax(self._dims).to(torch.bool).reshape(self.shape)

    def mean_magnitude(self, above: Tensor | None = None) -> Tensor:
        """The mean of |x| in each block, over |x| > `above` if given: one per block.

        Summed as integers, so that no order of summation changes the bits (docs/numerics.md, 3.2).
        """
        if self._empty:
            return self._zeros()
        size = self._values.abs()
        chosen = self._finite
        if above is not None:
            chosen = chosen & (size > self._per_block(above))
        largest = size.amax(self._dims, keepdim=True)
        power = unit_exponent(largest)
        total = torch.where(chosen, in_units(size, power), 0).sum(self._dims)
        count = chosen.sum(self._dims)
        return mean_of(total, count, power.reshape(total.shape)).reshape(self.shape)

    def _per_block(self, scale: Tensor) -> Tensor:
        """One number per block, shaped to broadcast with the split tensor."""
        return scale.reshape([part for count in self.shape for part in (count, 1)])
