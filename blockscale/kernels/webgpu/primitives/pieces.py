# SPDX-License-Identifier: BSD-3-Clause
"""Tensors that are larger than what a kernel sees of a buffer are taken in pieces."""

from collections.abc import Iterator
from dataclasses import dataclass

from blockscale.kernels.webgpu.gpu.device import gpu
from blockscale.kernels.webgpu.gpu.launch import Window
from blockscale.kernels.webgpu.gpu.memory import Memory

STEP = 1 << 16  # of pieces: so many elements of any number of bits end at a multiple of 256 bytes


@dataclass(frozen=True)
class Piece:
    """Neighbouring elements of a tensor.

    first: the index of the first one, a multiple of STEP
    count: how many there are
    """

    first: int
    count: int

    @property
    def named(self) -> dict[str, int]:
        """The sizes that kernels read."""
        return {"first": self.first, "bound": self.count}

    def window(self, memory: Memory, bits: int) -> Window:
        """The piece of a buffer that has `bits` an element, in fours of words."""
        nbytes = -(-self.count * bits // 8)
        return Window(memory, self.first * bits // 8, max(-(-nbytes // 16) * 16, 16))


def pieces(count: int, bits: int, step: int = STEP) -> Iterator[Piece]:
    """Pieces of `count` elements of which none has more bytes than a kernel sees of a buffer.

    bits: of an element, in the buffer that has the most
    step: pieces are multiples of it; itself a multiple of STEP
    """
    most = largest(bits, step)
    for first in range(0, count, most):
        yield Piece(first, min(most, count - first))


def largest(bits: int, step: int = STEP) -> int:
    """How many elements a piece has at most; 0 where not even one step fits."""
    return 8 * gpu().binding_limit // bits // step * step
