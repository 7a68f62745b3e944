# SPDX-License-Identifier: BSD-3-Clause
"""Fewer dimensions with the same blocks, so that kernels for a few serve tensors of any rank.

Sizes of blocks are those of Block.sizes_for (blockscale.core.block).
"""

from collections.abc import Sequence
from math import prod

from blockscale.core.block import WHOLE

Sizes = tuple[int, ...]


def merged(shape: Sequence[int], sizes: Sequence[int]) -> tuple[Sizes, Sizes]:
    """A contiguous tensor of `shape` in blocks of `sizes`, with neighbouring dimensions merged.

    Returns the shape and the sizes of its blocks, none of them larger than its dimension, of the
    same memory seen in as few dimensions as the blocks allow: the same elements share a scale, and
    scales have the same row-major order. Dimensions of size 1 are dropped, so a tensor of one
    element has none left. Two neighbours merge where
        the inner one is whole:  [4, 9] in blocks of (2, whole) is [36] in blocks of 18;
        the outer one has blocks of 1 and those of the inner one divide it:
                                 [4, 64] in blocks of (1, 32) is [256] in blocks of 32.
    An empty tensor comes back as it is: its scales have no common order of elements to keep.

    Raises ValueError for another number of sizes than dimensions.
    """
    if len(shape) != len(sizes):
        raise ValueError(
            f"expected a block size for each of {len(shape)} dimensions, found {sizes}"
        )
    if prod(shape) == 0:
        return tuple(shape), tuple(sizes)
    merged_shape: list[int] = []  # innermost first
    merged_sizes: list[int] = []
    for n, given in zip(reversed(shape), reversed(sizes), strict=True):
        size = n if given == WHOLE else min(given, n)
        if n == 1:
            continue
        if merged_shape and _joins(size, merged_shape[-1], merged_sizes[-1]):
            inner = merged_shape[-1]
            merged_sizes[-1] = size * inner if merged_sizes[-1] == inner else merged_sizes[-1]
            merged_shape[-1] = n * inner
        else:
            merged_shape.append(n)
            merged_sizes.append(size)
    return tuple(reversed(merged_shape)), tuple(reversed(merged_sizes))


def _joins(outer_size: int, inner: int, inner_size: int) -> bool:
    """Whether a dimension with blocks of `outer_size` merges with the next one."""
    return inner_size == inner or (outer_size == 1 and inner % inner_size == 0)
