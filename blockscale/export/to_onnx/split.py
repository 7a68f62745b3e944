# SPDX-License-Identifier: BSD-3-Clause
"""A tensor split into its blocks, by ONNX's operators, and put together again.

x [rows, 70] in group32  ->  [rows, 96] padded  ->  [rows, 3, 32], one scale for the last size
"""

from collections.abc import Sequence
from dataclasses import dataclass

from blockscale.core.block import WHOLE, Block
from blockscale.export.to_onnx.scope import Scope

Sizes = Sequence[int | None]  # None: any number, known when the file runs


@dataclass(frozen=True)
class Split:
    """A tensor in blocks.

    x: its values; axes: those of one block, which have size 1 in the scale; padded: whether there
    are zeros that the tensor does not have
    """

    x: str
    axes: tuple[int, ...]
    padded: bool
    sizes: tuple[int | None, ...]
    blocks: tuple[int, ...]

    def joined(self, scope: Scope, values: str) -> str:
        """Values in blocks as the tensor that was split."""
        if not self.padded and all(size in (1, WHOLE) for size in self.blocks):
            return values
        whole = [
            _ceil(n, size) * size if size > 1 and n is not None else n
            for n, size in zip(self.sizes, self.blocks, strict=True)
        ]
        values = scope.op("Reshape", values, scope.ints(*_shape(whole, self.blocks)))
        if not self.padded:
            return values
        cut = [i for i, n in enumerate(self.sizes) if whole[i] != n]
        ends = [self.sizes[i] or 0 for i in cut]
        zeros = [0] * len(cut)
        return scope.op("Slice", values, scope.ints(*zeros), scope.ints(*ends), scope.ints(*cut))


def refused(block: Block, sizes: Sizes) -> str | None:
    """Why a tensor of these sizes cannot be split into such blocks in a file, or None."""
    if block.flat:
        return f"blocks of {block} run over the flattened tensor: use group{block.flat}"
    divided = [i for i, size in enumerate(block.sizes_for(len(sizes))) if size not in (1, WHOLE)]
    free = [i for i in divided if sizes[i] is None]
    if free:
        return f"blocks of {block} divide dimension {free[0]}, whose size is dynamic: make it fixed"
    behind = [i for i, n in enumerate(sizes) if divided and i > divided[0] and n is None]
    if len(behind) > 1:
        return f"more than one size after dimension {divided[0]} is dynamic: make them fixed"
    return None


def split(scope: Scope, x: str, block: Block, sizes: Sizes) -> Split:
    """x of these sizes in its blocks; `refused` has said that it can be."""
    blocks = block.sizes_for(len(sizes))
    whole, parts, axes = list(sizes), list[int | None](), list[int]()
    for i, (n, size) in enumerate(zip(sizes, blocks, strict=True)):
        if size > 1:
            assert n is not None
            whole[i] = _ceil(n, size) * size
            axes.append(len(parts) + 1)
            parts += [_ceil(n, size), size]
        else:
            if size == WHOLE:
                axes.append(len(parts))
            parts.append(n)
    padded = whole != list(sizes)
    if padded:
        ends = [0 if n is None else n - (sizes[i] or 0) for i, n in enumerate(whole)]
        x = scope.op("Pad", x, scope.ints(*[0] * len(sizes), *ends))
    if len(parts) > len(sizes):
        x = scope.op("Reshape", x, scope.ints(*_shape(parts, blocks)))
    return Split(x, tuple(axes), padded, tuple(sizes), blocks)


def _shape(parts: Sizes, blocks: Sequence[int]) -> list[int]:
    """What Reshape is told: 0 keeps a size in its place, -1 finds the one that is left."""
    first = next((i for i, size in enumerate(blocks) if size > 1), len(blocks))
    return [0 if i < first else (-1 if n is None else n) for i, n in enumerate(parts)]


def _ceil(n: int, size: int) -> int:
    return -(-n // size)
