"""Blocks in smaller blocks: whether they are, and a number of each for each of the smaller ones."""

from collections.abc import Sequence

import torch
from torch import Tensor

from blockscale.core.block import WHOLE, Block


def nested(outer: Block, inner: Block, shape: Sequence[int]) -> bool:
    """Whether each block of a tensor of `shape` is made of whole blocks `inner`."""
    if outer == inner or _flat_rows(outer, inner, shape):
        return True
    if outer.flat or inner.flat:
        return False
    try:
        pairs = zip(outer.sizes_for(len(shape)), inner.sizes_for(len(shape)), shape, strict=True)
    except ValueError:
        return False
    return all(_fits(large, small, n) for large, small, n in pairs)


def _flat_rows(one: Block, other: Block, shape: Sequence[int]) -> bool:
    """Whether one is of the flattened tensor, and the other of the same elements, within rows."""
    flat, rows = (one, other) if one.flat else (other, one)
    name = f"group{flat.flat}"
    return bool(flat.flat) and not flat.strided and str(rows) == name and shape[-1] % flat.flat == 0


def _fits(large: int, small: int, n: int) -> bool:
    large, small = large or n, small or n
    return min(large, n) == min(small, n) or large % small == 0 or large >= n


def finer(numbers: Tensor, outer: Block, inner: Block, shape: Sequence[int]) -> Tensor:
    """A number of each block -> of each of the smaller blocks in it."""
    if outer == inner:
        return numbers
    if outer.flat or inner.flat:
        return numbers.reshape(inner.scale_shape(shape))
    sizes = zip(outer.sizes_for(len(shape)), inner.sizes_for(len(shape)), shape, strict=True)
    for dim, (large, small, n) in enumerate(sizes):
        count = 1 if small == WHOLE else -(-n // small)
        if numbers.shape[dim] != count:
            numbers = _repeated(numbers, dim, count, small, large or n)
    return numbers


def _repeated(numbers: Tensor, dim: int, count: int, small: int, large: int) -> Tensor:
    times = large // small
    if large % small == 0 and count == numbers.shape[dim] * times:
        sizes = [-1] * (numbers.ndim + 1)
        sizes[dim + 1] = times
        return numbers.unsqueeze(dim + 1).expand(sizes).flatten(dim, dim + 1)
    place = torch.arange(count) * small // large
    return numbers.index_select(dim, place)
