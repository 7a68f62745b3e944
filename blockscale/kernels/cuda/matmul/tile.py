# SPDX-License-Identifier: BSD-3-Clause
"""The way "tile": words go to registers as the tensor core reads them, and are decoded there.

It needs no Hopper, and codes that lie in whole words. The device code is tile_kernel.py.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from blockscale.kernels.cuda.matmul import tile_kernel
from blockscale.kernels.cuda.matmul.call import Call, columns, tile_rows, worth_measuring
from blockscale.kernels.cuda.matmul.finish import NO_ENDS, Ends, result
from blockscale.kernels.cuda.matmul.order import by_planes
from blockscale.kernels.cuda.matmul.reading import SMALLEST_TILE, Reading
from blockscale.kernels.cuda.matmul.weight import Weight, as_words, output_factors, scale_stride
from blockscale.kernels.cuda.replay.direct import cdiv, direct


class TileSettings(NamedTuple):
    """rows, outputs, words: of x, of the weight and of each of its rows in a tile
    warps, stages: of a program: its warps, and the steps along k whose loads are under way
    split_k: programs that divide k among them
    unroll: tiles in a turn of a program's loop along k
    """

    rows: int
    outputs: int
    words: int
    warps: int
    stages: int
    split_k: int = 1
    unroll: int = 1

    @classmethod
    def read(cls, numbers: Sequence[int]) -> "TileSettings":
        """The settings of a table's entry."""
        return cls(*columns(numbers))

    def entry(self) -> tuple[int, ...]:
        """The numbers that a table has of them."""
        return tuple(self)


_TO_MEASURE = tuple(TileSettings(*each) for each in (  # what won somewhere
    *((8, 64, 64, 4, 3, 1), (8, 64, 64, 4, 3, 2), (16, 64, 64, 4, 3, 1), (16, 64, 64, 4, 3, 2)),
    *((16, 64, 32, 4, 3, 2), (16, 128, 32, 4, 3, 4), (16, 128, 16, 4, 3, 2), (16, 64, 16, 4, 4, 2)),
    *((16, 64, 16, 4, 3, 2, 2), (32, 64, 32, 4, 3, 1), (32, 128, 32, 4, 3, 2)),
    *((32, 128, 16, 4, 3, 1), (32, 128, 16, 4, 3, 2), (64, 128, 16, 4, 3, 1)),
    *((64, 128, 16, 4, 3, 2), (128, 64, 16, 4, 3, 1), (128, 128, 16, 8, 3, 1)),
))  # fmt: skip


def in_registers(r: Reading) -> bool:
    """Whether codes can be decoded on their way, and need no memory of their own."""
    return r.planes > 0 and (not r.per_block or r.words % SMALLEST_TILE == 0)


def fits(call: Call, r: Reading, settings: TileSettings) -> bool:
    """Whether the codes lie in words, and their blocks allow the tile."""
    if not r.planes:
        return False
    if r.per_block:
        return r.words > 0 and r.words % settings.words == 0
    turns = call.k // r.planes // (settings.words * settings.unroll * settings.split_k)
    return settings.unroll == 1 or turns > 0


def usual(call: Call, r: Reading) -> TileSettings:
    """What is taken where nothing was measured: programs for an H200's 132 processors, twice."""
    rows = min(tile_rows(call.rows, 16), 128)
    words = 16 if rows > 16 or r.per_block else 32
    programs, split_k = cdiv(call.n, 128) * cdiv(call.rows, rows), 1
    while programs * split_k < 256 and call.k // (split_k * 2) >= 1024:
        split_k *= 2
    return TileSettings(rows, 128, words, 8 if rows > 64 else 4, 3, split_k)


def to_measure(call: Call, r: Reading) -> list[TileSettings]:
    """What `tune` measures for a call."""
    return [s for s in _TO_MEASURE if worth_measuring(s.rows, call) and fits(call, r, s)]


def tile(
    x: Tensor,
    weight: Weight,
    fmt: str,
    r: Reading,
    ends: Ends,
    settings: TileSettings,
    dtype: torch.dtype,
) -> Tensor:
    """x [rows, k] @ weight.T -> [rows, n] of dtype."""
    n = weight.codes.shape[0]
    ready = by_planes(x, r.planes)
    rows, words = ready.shape[1:]
    turn = settings.words * settings.unroll
    steps = cdiv(words, settings.split_k * turn)
    split_k = cdiv(words, steps * turn)
    y = result(x, n, split_k * (rows // x.shape[0]), dtype)
    now = ends if y.whole else NO_ENDS
    factors = output_factors(weight, fmt, r)
    grid = (cdiv(rows, settings.rows) * cdiv(n, settings.outputs), split_k)
    direct(tile_kernel.multiply)[grid](
        ready, as_words(weight.codes), weight.scale, weight.zero_point, factors.values,
        now.x_row, now.bias, y.sums,
        rows, n, words, weight.codes.stride(0) * weight.codes.itemsize // 4,
        scale_stride(weight), weight.scale.shape[-1], factors.stride,
        R=r, DTYPES=(tl.bfloat16,) * r.planes,
        BM=settings.rows, BN=settings.outputs, BK=settings.words,
        STEPS=steps, UNROLL=settings.unroll,
        WHOLE=words == split_k * steps * turn, LAST=y.whole,
        num_warps=settings.warps, num_stages=settings.stages,
    )  # fmt: skip
    return y.finish(ends)
