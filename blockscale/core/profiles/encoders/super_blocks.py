# SPDX-License-Identifier: BSD-3-Clause
"""Tensors cut into super-blocks of 256, a few MB at a time, and put together again."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.reference import QParams, widen
from blockscale.core.scales.two_level import TwoLevel

SUPER = 256
_CHUNK = 1024  # super-blocks that are searched at a time: they stay in a processor's cache


class Parts(NamedTuple):
    """What an encoder makes of n numbers in each of some blocks.

    codes: [n, blocks]; scale: [super-blocks, each] codes; outer: [super-blocks, 1] fp16; offset,
    offset_outer: likewise
    """

    codes: Tensor
    scale: Tensor
    outer: Tensor
    offset: Tensor | None = None
    offset_outer: Tensor | None = None


def half(x: Tensor) -> Tensor:
    """float32 -> fp16, nearest even, infinite above 65504."""
    return x.to(torch.float16)


def by_super_block(
    x: Tensor, fmt: Format, encode: Callable[[Tensor, Format], Parts]
) -> tuple[Tensor, QParams]:
    """x [..., n] -> codes [..., n] and what stands beside them, by `encode` of chunks."""
    assert isinstance(fmt.scale, TwoLevel)
    [(_, size)] = fmt.block.sizes
    blocks = widen(x).reshape(-1, size)
    step = _CHUNK * SUPER // size
    pieces = (blocks[start : start + step] for start in range(0, len(blocks), step))
    made = [encode(piece.T.contiguous(), fmt) for piece in pieces]
    if not made:
        empty = torch.zeros(0, dtype=torch.int32, device=x.device)
        made = [Parts(empty.reshape(size, 0), empty, empty, empty, empty)]
    shapes = fmt.stored(x.shape)
    codes = torch.cat([each.codes.T for each in made]).reshape(x.shape).to(fmt.element.code_dtype)
    inner = fmt.scale.inner.element
    mask = 2**inner.bits - 1
    beside = {}
    for part, (dtype, shape) in shapes.items():
        whole = torch.cat([getattr(each, part).reshape(-1) for each in made])
        beside[part] = (whole & mask if dtype == torch.uint8 else whole).to(dtype).reshape(shape)
    return codes, QParams(**beside)
