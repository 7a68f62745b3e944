"""Some dozens to thousands of rows on a Hopper: codes decoded beside the tensor cores' work.

The device code is hopper/linear.py, in Gluon, which Triton calls experimental: it is used with the
versions of Triton that it was tested with, and where the copy engine can read the weight.
"""

import os
import warnings
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockscale.kernels.cuda import interpreting
from blockscale.kernels.cuda.device.numerics import narrow
from blockscale.kernels.cuda.matmul import linear_tile
from blockscale.kernels.cuda.matmul.linear_launch import (
    PARTS,
    Ends,
    Tile,
    Weight,
    as_words,
    row_steps,
)
from blockscale.kernels.cuda.matmul.linear_reading import Reading
from blockscale.kernels.cuda.matmul.linear_work import (
    WORDS,
    Cut,
    Work,
    arrangement,
    cut,
    deep,
    ordered,
    step_codes,
    work,
)
from blockscale.kernels.cuda.replay.direct import cdiv, direct, power_of_2

TESTED = ("3.6",)  # versions of Triton
_UNFLUSHED = 1024  # products that a tensor core, which truncates, adds up where more bits show


@cache
def unusable(device: int) -> str | None:
    """Why the kernels in hopper/ cannot run on this GPU, or None if they can.

    BLOCKSCALE_GLUON=1 lets a Triton run them that they were not tested with, 0 none. Raises
    ValueError for other texts.
    """
    wish = os.environ.get("BLOCKSCALE_GLUON", "")
    if wish not in ("", "0", "1"):
        raise ValueError(
            f"BLOCKSCALE_GLUON is {wish!r}: 1 runs the kernels for Hopper with any Triton, 0 with "
            "none; without it they run with the versions that they were tested with"
        )
    if interpreting():
        return "Triton's interpreter does not run Gluon"
    major, minor = torch.cuda.get_device_capability(device)
    if major != 9:
        return f"compute capability {major}.{minor} is not 9.0"
    if wish == "0":
        return "BLOCKSCALE_GLUON is 0"
    version = ".".join(triton.__version__.split(".")[:2])
    if version in TESTED or wish == "1":
        return None
    reason = f"Triton {version} is not among those they were tested with: {', '.join(TESTED)}"
    warnings.warn(
        f"blockscale's kernels for Hopper are left out: {reason}. Linear layers take slower ways; "
        "BLOCKSCALE_GLUON=1 uses the kernels all the same, 0 silences this",
        stacklevel=2,
    )
    return reason


def readable(codes: Tensor) -> bool:
    """Whether the copy engine can read the codes: rows that begin at multiples of 16 bytes."""
    at = codes.data_ptr() | codes.stride(0) * codes.itemsize
    return codes.stride(-1) == 1 and at % 16 == 0


def can(codes: Tensor) -> bool:
    """Whether the kernel can run on these codes [n, bytes], where they are."""
    return codes.is_cuda and unusable(codes.device.index or 0) is None and readable(codes)


@triton.jit(do_not_specialize=["rows", "whole", "tail"])
def finish_tail(
    parts, x_row, bias, out, rows, n, whole, tail,
    COUNT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, LINES: tl.constexpr,
):  # fmt: skip
    """float32 parts [COUNT, tail, BM, BN] of the tiles from `whole` on -> out [rows, n]."""
    tile = tl.program_id(0)
    pm, pn = linear_tile.place(whole + tile, rows, n, BM, BN)
    local = tl.program_id(1) * LINES + tl.arange(0, LINES)
    column = tl.arange(0, BN)
    sums = tl.zeros((LINES, BN), tl.float32)
    for i in tl.static_range(COUNT):
        at = (i * tail + tile).to(tl.int64) * BM * BN
        sums += tl.load(parts + at + local[:, None] * BN + column[None, :])
    rm, rn = pm * BM + local, pn * BN + column
    if x_row is not None:
        sums *= tl.load(x_row + rm, mask=rm < rows, other=0.0)[:, None]
    if bias is not None:
        sums += tl.load(bias + rn, mask=rn < n, other=0.0).to(tl.float32)[None, :]
    to = out + rm.to(tl.int64)[:, None] * n + rn[None, :]
    tl.store(to, narrow(sums, out.dtype.element_ty), mask=(rm < rows)[:, None] & (rn < n)[None, :])


@cache
def processors(device: int) -> int:
    """How many programs run at a time."""
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


def fused(
    x: Tensor, weight: Weight, fmt: str, r: Reading, ends: Ends, tile: Tile, dtype: torch.dtype
) -> Tensor:
    """x [rows, k] @ weight.T -> [rows, n] of dtype.

    tile.stages: programs that share a processor; tile.warps counts for linear_work.deep alone
    """
    rows, n = x.shape[0], weight.codes.shape[0]
    ready, parts = ordered(x, *arrangement(r)), PARTS[x.dtype]
    step = step_codes(r)
    short = parts == 1 and dtype is torch.bfloat16  # what hides the bits that tensor cores drop
    block = max(r.words // WORDS, 1) if r.per_block else (0 if short else _UNFLUSHED // step)
    if block and not r.per_block and tile.rows > 128:  # two sets of sums: no more fit
        tile = tile._replace(rows=128)
    tiles = cdiv(parts * rows, tile.rows) * cdiv(n, tile.outputs)
    total, unit = cdiv(ready.shape[1], step), (block or cdiv(128, step)) * deep(tile, block)
    c = cut(tiles, total, unit, tile, parts, processors(x.device.index or 0))
    t = work(r, tile, block, c.mode)
    y = x.new_empty((rows, n), dtype=dtype)
    out, held = y, None
    if c.mode == 1:
        out = x.new_empty((c.pieces * parts, rows, n), dtype=torch.float32)
    elif c.mode == 2:
        held = x.new_empty((c.pieces, c.tail, t.rows, t.outputs), dtype=torch.float32)
    now = Ends(None, None) if c.mode == 1 else ends
    _launch(ready, weight, row_steps(weight, fmt, r), now, out, held, c, t)
    if c.mode == 1:
        size = min(power_of_2(n), 1024)
        direct(linear_tile.finish)[(rows, cdiv(n, size))](
            out, None, ends.x_row, ends.bias, y, rows, n, 0, n, count=c.pieces * parts, BLOCK=size
        )
    elif c.mode == 2:
        direct(finish_tail)[(c.tail, t.rows // 16)](
            held, ends.x_row, ends.bias, y, rows, n, c.whole, c.tail,
            COUNT=c.pieces, BM=t.rows, BN=t.outputs, LINES=16,
        )  # fmt: skip
    return y


def _launch(
    x: Tensor,
    weight: Weight,
    row: tuple[Tensor | None, int],
    ends: Ends,
    out: Tensor,
    held: Tensor | None,
    c: Cut,
    t: Work,
) -> None:
    """hopper.linear.multiply on x [rows, k] in order."""
    from triton.experimental.gluon.language import NVMMASharedLayout
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from blockscale.kernels.cuda.matmul.hopper.linear import multiply

    words: Any = as_words(weight.codes)
    x_at = TensorDescriptor.from_tensor(x, [t.box, t.codes], NVMMASharedLayout(128, 16, 2))
    w_at = words
    if not t.six:
        w_at = TensorDescriptor.from_tensor(words, [t.outputs, WORDS], NVMMASharedLayout(64, 32, 2))
    direct(multiply)[c.grid](
        x_at, w_at, weight.scale, weight.zero_point, row[0], ends.x_row, ends.bias, out, held,
        x.shape[0], words.shape[0], weight.scale.stride(0) if weight.scale.shape[0] > 1 else 0,
        weight.scale.shape[-1], row[1], words.stride(0), words.shape[1],
        c.steps, c.whole, c.tail, c.all_steps,
        T=t, num_warps=t.warps, maxnreg=t.registers,
    )  # fmt: skip
