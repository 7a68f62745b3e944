# SPDX-License-Identifier: BSD-3-Clause
"""Where the elements of a tensor lie in a 3-D texture, and to which blocks they belong.

Texel (x, y, z) holds the elements 4x … 4x + 3 along the last dimension (the width), of row y of the
one before (the height); z counts all other dimensions in row-major order, so that the batch is
folded with the channels: z = channel + channels * batch.
"""

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import NamedTuple

from blockscale.core.block import WHOLE, Block
from blockscale.kernels.numbers import merged
from blockscale.kernels.webgpu.gpu.memory import COMPONENTS

Four = tuple[int, int, int, int]  # along the width, the height, the channels, the batch


class Layout(NamedTuple):
    """Elements along the width, rows along the height, and layers of them."""

    width: int
    height: int
    depth: int

    @property
    def texels(self) -> tuple[int, int, int]:
        """Texels along x, y and z."""
        return -(-self.width // COMPONENTS), self.height, self.depth

    @property
    def rows(self) -> int:
        """Rows of elements."""
        return self.height * self.depth


class BlockGrid(NamedTuple):
    """Blocks that are boxes; all four by width, height, channels, batch.

    tensor:  the tensor's sizes
    sizes:   the blocks' sizes, at most the tensor's
    counts:  how many there are along each dimension
    strides: between neighbours along each dimension in the row-major order of scales
    """

    tensor: Four
    sizes: Four
    counts: Four
    strides: Four

    @property
    def shared(self) -> bool:
        """Whether the components of a texel lie in one block."""
        return self.counts[0] == 1 or self.sizes[0] % COMPONENTS == 0

    @property
    def texels(self) -> tuple[int, int, int]:
        """The most texels that a block reaches into, along x, y and z."""
        width, height, channels, batch = self.sizes
        across = -(-width // COMPONENTS) if self.shared else (width + 2) // COMPONENTS + 1
        return min(across, -(-self.tensor[0] // COMPONENTS)), height, channels * batch


def layout(shape: Sequence[int]) -> Layout:
    """The layout of a tensor of `shape`, of any rank."""
    height, width = _last_two(shape)
    return Layout(width, height, prod(shape[:-2]))


@cache
def block_grid(shape: tuple[int, ...], block: Block) -> BlockGrid | None:
    """The blocks of a tensor of `shape`, which has elements; None where they are no boxes so.

    Dimensions before the last two are merged into two where blocks allow it; they are no boxes
    where they do not, and where blocks run over the flattened tensor.
    """
    if block.flat:
        return None
    given = block.sizes_for(len(shape))
    own = [n if size == WHOLE else min(size, n) for n, size in zip(shape, given, strict=True)]
    outer, outer_sizes = merged(shape[:-2], own[:-2])
    if len(outer) > 2:
        return None
    tensor = _four(outer, _last_two(shape))
    sizes = _four(outer_sizes, _last_two(own))
    counts = _four((), tuple(-(-n // size) for n, size in zip(tensor, sizes, strict=True))[::-1])
    strides = (1, counts[0], prod(counts[:2]), prod(counts[:3]))
    return BlockGrid(tensor, sizes, counts, strides)


def _last_two(sizes: Sequence[int]) -> tuple[int, int]:
    height, width = (1, 1, *sizes)[-2:]
    return height, width


def _four(outer: tuple[int, ...], inner: tuple[int, ...]) -> Four:
    """Sizes in the order of a shape, as width, height, channels, batch."""
    batch, channels, height, width = (1, 1, *outer, *inner)[-4:]
    return width, height, channels, batch
