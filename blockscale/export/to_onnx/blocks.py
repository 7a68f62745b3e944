# SPDX-License-Identifier: BSD-3-Clause
"""Numbers of blocks spread over the elements of a tensor, by ONNX's operators."""

from math import prod

from blockscale.core.block import Block
from blockscale.export.to_onnx.scope import Scope


def expand(
    scope: Scope, parts: str, block: Block, stored: tuple[int, ...], shape: tuple[int, ...]
) -> str:
    """parts, one a block, of the shape `stored` -> what broadcasts to a tensor of `shape`.

    All sizes are known: these are the blocks of weights.
    """
    if prod(stored) == 1:
        return scope.op("Reshape", parts, scope.ints(*[1] * len(shape)))
    if block.flat:
        return _expand_flat(scope, parts, block, shape)
    for dim, (count, n, size) in enumerate(
        zip(stored, shape, block.sizes_for(len(shape)), strict=True)
    ):
        if size > 1 and count > 1:
            parts = repeated(scope, parts, dim, n, size)
    return parts


def repeated(scope: Scope, parts: str, dim: int, n: int, size: int) -> str:
    """parts, one a block of `size` along `dim` -> one for each of n elements."""
    zero, one = (scope.op("Squeeze", scope.ints(number)) for number in (0, 1))
    every = scope.op("Range", zero, scope.op("Squeeze", scope.ints(n)), one)
    place = scope.op("Div", every, scope.ints(size))
    return scope.op("Gather", parts, place, axis=dim)


def _expand_flat(scope: Scope, parts: str, block: Block, shape: tuple[int, ...]) -> str:
    size = prod(shape)
    count = -(-size // block.flat)
    rows = (1, -1) if block.strided else (-1, 1)
    whole = (block.flat, count) if block.strided else (count, block.flat)
    parts = scope.op("Reshape", parts, scope.ints(*rows))
    parts = scope.op("Expand", parts, scope.ints(*whole))
    parts = scope.op("Reshape", parts, scope.ints(-1))
    if count * block.flat != size:
        parts = scope.op("Slice", parts, scope.ints(0), scope.ints(size), scope.ints(0))
    return scope.op("Reshape", parts, scope.ints(*shape))
