# SPDX-License-Identifier: BSD-3-Clause
"""Values of an integer graph as C has them: arrays, and where in an array each element lies.

A value that moves have made is a tensor of places, int64 [its shape]: (number of the array << 40) +
index in it; what padding fills in is the number itself, which is far smaller. So every move of
torch is run, on places, as it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

_APART = 40
_FILL = 2 ** (_APART - 1)  # numbers below this magnitude stand for themselves

C_TYPES = {
    torch.int8: "int8_t",
    torch.uint8: "uint8_t",
    torch.bool: "uint8_t",
    torch.int16: "int16_t",
    torch.int32: "int32_t",
    torch.int64: "int64_t",
}


@dataclass(eq=False)
class Array:
    """An array of the C file.

    kind: "input", "output", "constant", or "arena" for what the plan of memory places
    first, last: the steps that write it first and read it last
    """

    name: str
    kind: str
    dtype: torch.dtype
    size: int
    number: int
    first: int = 0
    last: int = -1
    offset: int = 0

    @property
    def ctype(self) -> str:
        """What C calls an element."""
        return C_TYPES[self.dtype]

    @property
    def nbytes(self) -> int:
        """Of all elements."""
        return self.size * self.dtype.itemsize

    def places(self, shape: Sequence[int]) -> Tensor:
        """Where the elements of a contiguous value of this shape lie."""
        return (torch.arange(self.size) + (self.number << _APART)).reshape(tuple(shape))


@dataclass(frozen=True)
class Access:
    """Elements of an array at offset + strides · indices; shape: how many there are."""

    array: Array
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def contiguous(self) -> bool:
        """Whether it is the whole array, in order."""
        return self.offset == 0 and self.strides == strides_of(self.shape)

    def at(self, indices: Sequence[str]) -> str:
        """The C expression of an index in the array."""
        terms = [str(self.offset)] if self.offset else []
        for index, stride, size in zip(indices, self.strides, self.shape, strict=True):
            if size > 1 and stride and index != "0":
                simple = index.isidentifier()
                terms.append((index if simple else f"({index})") + f" * {stride}" * (stride != 1))
        return " + ".join(terms) or "0"


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Of a contiguous array; 0 where there is one element."""
    return tuple(0 if n == 1 else prod(shape[i + 1 :]) for i, n in enumerate(shape))


def numbers(places: Tensor) -> Tensor:
    """The number of each place's array, 0 for what stands for itself."""
    return (places + _FILL) >> _APART


def indices(places: Tensor) -> Tensor:
    """The index of each place in its array."""
    return places - (numbers(places) << _APART)


def affine(places: Tensor) -> tuple[int, tuple[int, ...]] | None:
    """Offset and strides of indices that have some, None for others."""
    offset, strides, expected = int(places.flatten()[0]), [], None
    for dim, size in enumerate(places.shape):
        first = places[(0,) * dim]
        stride = int(first[(1, *[0] * (places.ndim - dim - 1))]) - offset if size > 1 else 0
        strides.append(stride)
        along = (torch.arange(size) * stride).reshape(-1, *[1] * (places.ndim - dim - 1))
        expected = along if expected is None else expected + along
    same = expected is None or torch.equal(offset + expected, places)
    return (offset, tuple(strides)) if same else None


def nested(pairs: Tensor) -> tuple[list[int], list[int], list[list[int]]] | None:
    """Pairs of indices [count, 2] as nested loops -> the first pair, the loops' sizes from the
    outermost, and by how much a turn of each goes on; None where none are found."""
    sizes: list[int] = []
    steps: list[list[int]] = []
    rest = pairs
    while len(rest) > 1:
        step = rest[1] - rest[0]
        same = (rest[1:] - rest[:-1] == step).all(1).tolist()
        count = 1 + (same.index(False) if False in same else len(same))
        if len(rest) % count:
            return None
        rows = rest.reshape(-1, count, 2)
        if not bool((rows[:, 1:] - rows[:, :-1] == step).all()):
            return None
        sizes.insert(0, count)
        steps.insert(0, step.tolist())
        rest = rows[:, 0]
    return rest[0].tolist(), sizes, steps
