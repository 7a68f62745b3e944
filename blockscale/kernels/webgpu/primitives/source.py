# SPDX-License-Identifier: BSD-3-Clause
"""Numbers that kernels read: in a buffer, in pieces that they can see, or in a texture."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch

from blockscale.kernels.webgpu.gpu.launch import Bound
from blockscale.kernels.webgpu.gpu.memory import Memory
from blockscale.kernels.webgpu.gpu.texels import Texels
from blockscale.kernels.webgpu.primitives.choices import Numbers, numbers
from blockscale.kernels.webgpu.primitives.pieces import Piece, pieces


class InTexture(NamedTuple):
    """Numbers in texels, in rows of `width`, of which `height` make a layer."""

    texels: Texels
    width: int
    height: int


Source = Memory | InTexture


def read(x: Source, dtype: torch.dtype) -> Numbers:
    """How the numbers, of this dtype, are read."""
    own = numbers(dtype)
    return replace(own, load="texture") if isinstance(x, InTexture) else own


def sizes(x: Source) -> dict[str, int]:
    """The sizes that memory/load/texture reads."""
    return {"width": x.width, "height": x.height} if isinstance(x, InTexture) else {}


def seen(x: Source, count: int, bits: int) -> Iterator[tuple[Piece, Bound]]:
    """Pieces of `count` numbers of `bits`, and what is bound for each."""
    if isinstance(x, InTexture):
        yield Piece(0, count), x.texels
        return
    for piece in pieces(count, bits):
        yield piece, piece.window(x, bits)
