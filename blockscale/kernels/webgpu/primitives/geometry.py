# SPDX-License-Identifier: BSD-3-Clause
"""How the blocks of a tensor lie in its memory: after one another, or as boxes."""

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from blockscale.core.block import Block
from blockscale.kernels.numbers import Sizes, merged

DIMENSIONS = 8  # of boxes, as blocks/box has them
_MOST = (1 << 32) - (1 << 24)  # elements: kernels count them, and a little further, in 32 bits


@dataclass(frozen=True)
class Geometry:
    """A tensor that is not empty, in blocks.

    count:  elements
    blocks: how many there are, in the order of the stored scale
    block:  elements of a full one
    shape, sizes: of boxes, their dimensions and those of a block; () where blocks follow one
        another in memory
    """

    count: int
    blocks: int
    block: int
    shape: Sizes = ()
    sizes: Sizes = ()

    @property
    def kind(self) -> str:
        """The part blocks/{kind}."""
        return "box" if self.shape else "line"

    @property
    def inner(self) -> int:
        """How many elements of a block at least follow one another, if none is cut off."""
        return self.sizes[-1] if self.shape else self.block

    @property
    def named(self) -> dict[str, int]:
        """The sizes that parts of shaders read."""
        if not self.shape:
            return {"block": self.block}
        missing = (1,) * (DIMENSIONS - len(self.shape))
        named = {f"n{i}": n for i, n in enumerate((*missing, *self.shape))}
        return named | {f"b{i}": b for i, b in enumerate((*missing, *self.sizes))}

    def shares(self, elements: int) -> bool:
        """Whether `elements` neighbours, from a multiple of that on, have one scale."""
        if not self.shape:
            return self.blocks == 1 or self.block % elements == 0
        n, size = self.shape[-1], self.sizes[-1]
        return n % elements == 0 and (size == n or size % elements == 0)


@lru_cache(4096)
def geometry(shape: Sizes, block: Block) -> Geometry:
    """The blocks of a tensor of `shape`, which is not empty.

    Raises ValueError for a block that does not fit, for more elements than kernels count, and for
    boxes of more dimensions than kernels know (neighbours that merge are one).
    """
    count, blocks = prod(shape), prod(block.scale_shape(shape))
    if count > _MOST:
        raise ValueError(
            f"a tensor of {count} elements is too large for WebGPU kernels, which count up to "
            f"{_MOST}: quantize parts of it"
        )
    if block.strided:
        sizes: Sizes = (block.flat, 1)
        shape = (block.flat, count // block.flat)
    elif block.flat:
        return Geometry(count, blocks, min(block.flat, count))
    else:
        sizes = block.sizes_for(len(shape))
    shape, sizes = merged(shape, sizes)
    if len(shape) > DIMENSIONS:
        raise ValueError(
            f"blocks of {block} over {len(shape)} dimensions that cannot be merged: WebGPU "
            f"kernels support up to {DIMENSIONS}; use bs.use('reference')"
        )
    if len(shape) <= 1:
        return Geometry(count, blocks, prod(sizes))
    return Geometry(count, blocks, prod(sizes), shape, tuple(sizes))
