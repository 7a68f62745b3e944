# SPDX-License-Identifier: BSD-3-Clause
"""The way "fused": for more rows of x, codes are decoded while the tensor cores multiply others.

It needs a Hopper (hopper/available.py), where the copy engine can read the weight. The device code
is hopper/fused*.py, and what it is compiled for fused_work.py.
"""

from functools import cache
from itertools import product
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockscale.kernels.cuda.device.numerics import narrow
from blockscale.kernels.cuda.matmul.call import Call, tile_rows
from blockscale.kernels.cuda.matmul.finish import NO_ENDS, Ends, finished, result
from blockscale.kernels.cuda.matmul.fused_work import (
    Cut,
    FusedSettings,
    Work,
    arrangement,
    cut,
    slots,
    step_codes,
    takes,
    unrolled,
    work,
)
from blockscale.kernels.cuda.matmul.order import PARTS, STEP_WORDS, for_fused
from blockscale.kernels.cuda.matmul.reading import Reading
from blockscale.kernels.cuda.matmul.tile_kernel import place
from blockscale.kernels.cuda.matmul.weight import (
    OutputFactors,
    Weight,
    as_words,
    output_factors,
    scale_stride,
)
from blockscale.kernels.cuda.replay.direct import cdiv, direct

_UNFLUSHED = 1024  # products that a tensor core, which truncates, adds up where more bits show
_TAIL_LINES = 16  # rows of a tile that a program of `add_tail` has

_TO_MEASURE = (  # rows, outputs, programs that share a processor
    *((8, 64, 3), (8, 64, 4), (8, 64, 5), (8, 128, 2), (16, 64, 3), (16, 64, 4), (16, 64, 5)),
    *((16, 128, 2), (32, 64, 3), (32, 64, 4), (32, 128, 2), (64, 64, 2), (64, 64, 3)),
    *((64, 64, 0), (64, 128, 0), (128, 64, 0), (128, 64, 2), (128, 128, 0), (192, 128, 0)),
    *((256, 64, 0), (256, 128, 0)),
)


def fits(call: Call, r: Reading, settings: FusedSettings) -> bool:
    """Whether the GPU runs the kernel, and the kernel takes the weight and the tile."""
    return call.fused and takes(r, settings)


def usual(call: Call, r: Reading) -> FusedSettings:
    """What is taken where nothing was measured: as many rows as there are, up to what registers
    hold; fewer outputs where tiles are few."""
    rows = min(tile_rows(call.rows, 64), 256)
    while rows > 64 and not takes(r, FusedSettings(rows, 128)):
        rows //= 2
    tiles = cdiv(call.rows, rows) * cdiv(call.n, 128)
    return FusedSettings(rows, 128 if tiles > 66 else 64)


def to_measure(call: Call, r: Reading) -> list[FusedSettings]:
    """What `tune` measures for a call: tiles that are not much larger than x, along k in one piece
    or, for few tiles, in more."""
    taken = []
    top = tile_rows(call.rows, 8)
    for rows, outputs, programs in _TO_MEASURE:
        if rows > top or rows * 2 < min(top, 256) or (top < 64 and rows != top):
            continue
        tiles = cdiv(call.rows, rows) * cdiv(call.n, outputs)
        splits = [(1, 1), (2, 1), (4, 1)] if tiles < 264 * max(programs, 1) else [(1, 1)]
        splits += [(1, 2), (1, 4)] if rows > 64 and 132 < tiles < 1056 else []
        unrolls = (1, 2) if slots(r) and rows >= 128 and not programs else (1,)
        for (split_k, split_tail), unroll in product(splits, unrolls):
            each = FusedSettings(rows, outputs, programs, split_k, split_tail, unroll)
            if takes(r, each):
                taken.append(each)
    return taken


@cache
def processors(device: int) -> int:
    """How many programs run at a time."""
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


@triton.jit(do_not_specialize=["rows", "whole", "tail"])
def add_tail(
    parts, x_row, bias, out, rows, n, whole, tail,
    COUNT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, LINES: tl.constexpr,
):  # fmt: skip
    """Partial sums of the tiles of the last wave, added from the first to the last and finished.

    parts: float32 [COUNT, tail, BM, BN], of the `tail` tiles from tile `whole` on
    x_row: float32 [rows] or None; bias: [n] or None; out: [rows, n]
    A program has LINES rows of one tile.
    """
    tile = tl.program_id(0)
    pm, pn = place(whole + tile, rows, n, BM, BN)
    local = tl.program_id(1) * LINES + tl.arange(0, LINES)
    column = tl.arange(0, BN)
    sums = tl.zeros((LINES, BN), tl.float32)
    for i in tl.static_range(COUNT):
        at = (i * tail + tile).to(tl.int64) * BM * BN
        sums += tl.load(parts + at + local[:, None] * BN + column[None, :])
    rm, rn = pm * BM + local, pn * BN + column
    sums = finished(sums, x_row, bias, rm, rn, rows, n, 0)
    to = out + rm.to(tl.int64)[:, None] * n + rn[None, :]
    tl.store(to, narrow(sums, out.dtype.element_ty), mask=(rm < rows)[:, None] & (rn < n)[None, :])


def fused(
    x: Tensor,
    weight: Weight,
    fmt: str,
    r: Reading,
    ends: Ends,
    settings: FusedSettings,
    dtype: torch.dtype,
) -> Tensor:
    """x [rows, k] @ weight.T -> [rows, n] of dtype."""
    rows, n = x.shape[0], weight.codes.shape[0]
    ready, parts = for_fused(x, *arrangement(r)), PARTS[x.dtype]
    step = step_codes(r)
    short = parts == 1 and dtype is torch.bfloat16  # what hides the bits that tensor cores drop
    block = max(r.words // STEP_WORDS, 1) if r.per_block else (0 if short else _UNFLUSHED // step)
    if block and not r.per_block and settings.rows > 128:  # two sets of sums: no more fit
        settings = settings._replace(rows=128)
    tiles = cdiv(parts * rows, settings.rows) * cdiv(n, settings.outputs)
    total = cdiv(ready.shape[1], step)
    unit = (block or cdiv(128, step)) * unrolled(settings, block)
    c = cut(tiles, total, unit, settings, parts, processors(x.device.index or 0))
    t = work(r, settings, block, c.mode)
    y = result(x, n, c.pieces * parts if c.mode == 1 else 1, dtype)
    tail = None
    if c.mode == 2:
        tail = x.new_empty((c.pieces, c.tail, t.rows, t.outputs), dtype=torch.float32)
    factors = output_factors(weight, fmt, r)
    _launch(ready, weight, factors, ends if y.whole else NO_ENDS, y.sums, tail, c, t)
    if c.mode == 2:
        direct(add_tail)[(c.tail, t.rows // _TAIL_LINES)](
            tail, ends.x_row, ends.bias, y.y, rows, n, c.whole, c.tail,
            COUNT=c.pieces, BM=t.rows, BN=t.outputs, LINES=_TAIL_LINES,
        )  # fmt: skip
    return y.finish(ends)


def _launch(
    x: Tensor, weight: Weight, factors: OutputFactors, ends: Ends, out: Tensor,
    tail: Tensor | None, c: Cut, t: Work,
) -> None:  # fmt: skip
    """hopper.fused.multiply on x [rows, k] in order."""
    from triton.experimental.gluon.language import NVMMASharedLayout
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from blockscale.kernels.cuda.matmul.hopper.fused import multiply

    words: Any = as_words(weight.codes)
    x_at = TensorDescriptor.from_tensor(x, [t.box, t.codes], NVMMASharedLayout(128, 16, 2))
    w_at = words
    if not t.six_bits:
        tile = [t.outputs, STEP_WORDS]
        w_at = TensorDescriptor.from_tensor(words, tile, NVMMASharedLayout(64, 32, 2))
    direct(multiply)[c.grid](
        x_at, w_at, weight.scale, weight.zero_point, factors.values, ends.x_row, ends.bias, out,
        tail, x.shape[0], words.shape[0], scale_stride(weight), weight.scale.shape[-1],
        factors.stride, words.stride(0), words.shape[1],
        c.steps, c.whole, c.tail, c.all_steps,
        T=t, num_warps=t.warps, maxnreg=t.registers,
    )  # fmt: skip
