# SPDX-License-Identifier: BSD-3-Clause
"""A weight seen so that its blocks' scales broadcast, without a copy of them for each element."""

from math import prod

import torch
from torch import Tensor

from blockscale.calibration.algorithms.block_scales import block_sums
from blockscale.core.block import WHOLE, Block


class Cells:
    """Views of tensors of one shape, in which one number per block broadcasts.

    Where blocks divide the shape, dimension i becomes [blocks, size], and scales get dimensions of
    one; else the view is the tensor itself, and scales are repeated.
    """

    def __init__(self, shape: tuple[int, ...], block: Block):
        self.shape, self.block = shape, block
        self.scale_shape = block.scale_shape(shape)
        self._view, self._spread, self._dims = _split(shape, block)

    def view(self, x: Tensor) -> Tensor:
        """x [shape], contiguous -> the view."""
        return x.reshape(self._view)

    def plain(self, x: Tensor) -> Tensor:
        """A view -> [shape]."""
        return x.reshape(self.shape)

    def spread(self, scale: Tensor) -> Tensor:
        """One number per block [scale's shape] -> what broadcasts to the view."""
        return scale.reshape(self._spread) if self._dims else self.block.expand(scale, self.shape)

    def sums(self, x: Tensor) -> Tensor:
        """A view -> its sum over each block [scale's shape]."""
        if not self._dims:
            return block_sums(x, self.block) if x.ndim == 2 else self._summed(x)
        return x.sum(self._dims).reshape(self.scale_shape)

    def _summed(self, x: Tensor) -> Tensor:
        places = torch.arange(prod(self.scale_shape), device=x.device).reshape(self.scale_shape)
        at = self.block.expand(places, self.shape).expand(self.shape)
        sums = x.new_zeros(prod(self.scale_shape)).index_add_(0, at.reshape(-1), x.reshape(-1))
        return sums.reshape(self.scale_shape)


def _split(
    shape: tuple[int, ...], block: Block
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The view's shape, that of scales in it, and which of its dimensions run inside of blocks.

    No such dimensions: blocks do not divide the shape.
    """
    if block.flat:
        if prod(shape) % block.flat:
            return shape, (), ()
        count = prod(shape) // block.flat
        if block.strided:
            return (block.flat, count), (1, count), (0,)
        return (count, block.flat), (count, 1), (1,)
    sizes = [
        n if s == WHOLE else s for n, s in zip(shape, block.sizes_for(len(shape)), strict=True)
    ]
    if any(size == 0 or n % size for n, size in zip(shape, sizes, strict=True)):
        return shape, (), ()
    view: list[int] = []
    scales: list[int] = []
    for n, size in zip(shape, sizes, strict=True):
        view += [n // size, size]
        scales += [n // size, 1]
    return tuple(view), tuple(scales), tuple(range(1, 2 * len(shape), 2))
