# SPDX-License-Identifier: BSD-3-Clause
"""The way "blocks": codes become bfloat16 in memory, and the sums of blocks meet their scales.

As "dense" where scales are floats that no bfloat16 holds together with a code: the library has no
product for it, so the kernel of codes.py multiplies.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.kernels.cuda.matmul import codes as codes_kernel
from blockscale.kernels.cuda.matmul.dense import exact
from blockscale.kernels.cuda.matmul.finish import NO_ENDS, Ends, result
from blockscale.kernels.cuda.matmul.operands import ProductCall, Weight, columns, tile_rows
from blockscale.kernels.cuda.matmul.order import in_parts
from blockscale.kernels.cuda.matmul.reading import Reading
from blockscale.kernels.cuda.relaunch import cdiv, direct


class BlocksSettings(NamedTuple):
    """rows, outputs, codes: of x, of the weight and of each of its rows in a tile
    warps, stages: of a program: its warps, and the steps along k whose loads are under way
    unroll: tiles along k that are summed up before their sums meet a scale
    """

    rows: int
    outputs: int
    codes: int
    warps: int
    stages: int
    unroll: int = 1

    @classmethod
    def read(cls, numbers: Sequence[int]) -> "BlocksSettings":
        """The settings of a table's entry."""
        rows, outputs, codes, warps, stages, _, unroll = columns(numbers)
        return cls(rows, outputs, codes, warps, stages, unroll)

    def entry(self) -> tuple[int, ...]:
        """The numbers that a table has of them."""
        return (*self[:5], 1, self.unroll)


_TO_MEASURE = tuple(BlocksSettings(*each) for each in (
    *((128, 128, 64, 8, 4, 1), (128, 128, 64, 8, 3, 2), (128, 128, 64, 8, 2, 2)),
    *((128, 128, 128, 8, 3, 1), (128, 128, 128, 8, 2, 1), (128, 128, 64, 8, 3, 1)),
    *((128, 64, 64, 4, 3, 2), (64, 128, 64, 4, 3, 2)),
))  # fmt: skip


def fits(call: ProductCall, r: Reading, settings: BlocksSettings) -> bool:
    """Whether the sums of blocks have scales, and blocks are whole tiles."""
    del call
    return r.per_block and r.width % (settings.codes * settings.unroll) == 0


def usual(call: ProductCall, r: Reading) -> BlocksSettings:
    """What is taken where nothing was measured."""
    rows = min(tile_rows(call.rows, 16), 128)
    return BlocksSettings(rows, 128, _codes(r), 8 if rows > 64 else 4, 4)


def for_any_rows(r: Reading) -> BlocksSettings:
    """What is taken where a row's sums must not depend on their number."""
    return BlocksSettings(32, 128, _codes(r), 4, 4)


def _codes(r: Reading) -> int:
    return min(r.width & -r.width, 64)  # the largest power of two that divides a block


def to_measure(call: ProductCall, r: Reading) -> list[BlocksSettings]:
    """What `tune` measures for a call."""
    each = dict.fromkeys((usual(call, r), *_TO_MEASURE))
    return [settings for settings in each if fits(call, r, settings)]


def blocks(
    x: Tensor,
    weight: Weight,
    fmt: str,
    r: Reading,
    ends: Ends,
    settings: BlocksSettings,
    dtype: torch.dtype,
) -> Tensor:
    """x [rows, k] @ weight.T -> [rows, n] of dtype."""
    k, n = x.shape[1], weight.codes.shape[0]
    ready, w = in_parts(x), exact(weight, fmt, r, k)
    steps = weight.scale.to(torch.float32)
    if r.height != 1:
        steps = steps.repeat_interleave(r.height or n, 0)[:n].contiguous()
    turn, rows = settings.codes * settings.unroll, ready.shape[0]
    y = result(x, n, rows // x.shape[0], dtype)
    now = ends if y.whole else NO_ENDS
    grid = (cdiv(rows, settings.rows) * cdiv(n, settings.outputs),)
    direct(codes_kernel.multiply_codes)[grid](
        ready, w, now.x_row, None, steps, now.bias, y.sums,
        rows, n, k, ready.stride(0), w.stride(0), 0, steps.stride(0),
        KIND="bfloat16", BM=settings.rows, BN=settings.outputs, BK=settings.codes,
        STEPS=cdiv(k, turn), BLOCK=r.width, INNER=settings.unroll,
        WHOLE=k % turn == 0, num_warps=settings.warps, num_stages=settings.stages,
    )  # fmt: skip
    return y.finish(ends)
