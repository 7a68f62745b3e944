"""Launching the tile kernel: weights as words, x as planes, sums finished."""

from typing import NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from blockscale.core import reference
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.kernels.cuda.matmul import linear_tile
from blockscale.kernels.cuda.matmul.linear_reading import Reading
from blockscale.kernels.cuda.replay.direct import cdiv, direct, power_of_2

PARTS = {torch.bfloat16: 1, torch.float16: 2, torch.float32: 3}  # of x, each a bfloat16


class Weight(NamedTuple):
    """A quantized weight [n, k] as the op gets it."""

    codes: Tensor
    scale: Tensor
    zero_point: Tensor | None
    outer: Tensor | None


class Tile(NamedTuple):
    """How a call is cut: rows of x, outputs and words a tile, warps and stages of a program.

    chunks: programs along k; unroll: tiles in a turn of its loop
    """

    rows: int
    outputs: int
    words: int
    warps: int
    stages: int
    chunks: int = 1
    unroll: int = 1


class Ends(NamedTuple):
    """What finishes the sums: factors of the rows of x [rows], and a bias [n]."""

    x_row: Tensor | None
    bias: Tensor | None


def as_words(codes: Tensor) -> Tensor | None:
    """Packed codes [n, bytes] as int32 [n, words], or None where they do not lie so."""
    stride = codes.stride(0)
    if codes.stride(-1) != 1 or stride % 4 or codes.shape[-1] % 4 or codes.data_ptr() % 4:
        return None
    return codes.view(torch.int32)


def row_steps(weight: Weight, fmt: str, r: Reading) -> tuple[Tensor | None, int]:
    """What the sums of each output are multiplied by, and how far apart: float32 [n] or [1]."""
    if r.width:
        return (weight.outer, 0) if r.fold == "codes" else (None, 0)
    form = parse(fmt)
    steps = reference.step_of(QParams(weight.scale, weight.outer, weight.zero_point), form)
    if r.height > 1:
        steps = steps.repeat_interleave(r.height, 0)
    return steps.reshape(-1), int(steps.numel() > 1)


def planes(x: Tensor, r: Reading) -> tuple[Tensor, int]:
    """x [rows, k] -> bfloat16 [planes, parts * rows, words], and the number of parts."""
    rows, k = x.shape
    words, parts = k // r.planes, PARTS[x.dtype]
    x = x if x.stride(-1) == 1 else x.contiguous()
    out = x.new_empty((r.planes, parts * rows, words), dtype=torch.bfloat16)
    block = max(1, min(power_of_2(words), 2048 // r.planes))
    grid = (rows, cdiv(words, block))
    direct(linear_tile.arrange)[grid](
        x, out, rows, words, x.stride(0), PLANES=r.planes, PARTS=parts, BLOCK=block
    )
    return out, parts


def tiled(
    x: Tensor, weight: Weight, fmt: str, r: Reading, ends: Ends, tile: Tile, dtype: torch.dtype
) -> Tensor:
    """x [rows, k] @ weight.T -> [rows, n] of dtype."""
    rows, n = x.shape[0], weight.codes.shape[0]
    ready, parts = planes(x, r)
    every, words = parts * rows, ready.shape[-1]
    turn = tile.words * tile.unroll
    steps = cdiv(words, tile.chunks * turn)
    chunks = cdiv(words, steps * turn)
    last = chunks * parts == 1
    y = x.new_empty((rows, n), dtype=dtype)
    out = y if last else x.new_empty((chunks * parts, rows, n), dtype=torch.float32)
    row, row_stride = row_steps(weight, fmt, r)
    grid = (cdiv(every, tile.rows) * cdiv(n, tile.outputs), chunks)
    direct(linear_tile.multiply)[grid](
        ready, as_words(weight.codes), weight.scale, weight.zero_point, row,
        ends.x_row if last else None, ends.bias if last else None, out,
        every, n, words, weight.codes.stride(0) * weight.codes.itemsize // 4,
        weight.scale.stride(0) if weight.scale.shape[0] > 1 else 0, weight.scale.shape[-1],
        row_stride, R=r, DTYPES=(tl.bfloat16,) * r.planes,
        BM=tile.rows, BN=tile.outputs, BK=tile.words,
        STEPS=steps, UNROLL=tile.unroll,
        WHOLE=words == chunks * steps * turn, LAST=last,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    if not last:
        block = min(power_of_2(n), 1024)
        direct(linear_tile.finish)[(rows, cdiv(n, block))](
            out, None, ends.x_row, ends.bias, y, rows, n, 0, n, count=chunks * parts, BLOCK=block
        )
    return y
