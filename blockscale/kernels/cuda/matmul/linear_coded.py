"""Codes times codes: int8 and float8 on their own tensor cores, and sums by blocks."""

import os

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.block import WHOLE
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.kernels.cuda import interpreting
from blockscale.kernels.cuda.matmul import linear_codes, linear_tile
from blockscale.kernels.cuda.matmul.linear_choice import Choice
from blockscale.kernels.cuda.matmul.linear_dense import exact, split
from blockscale.kernels.cuda.matmul.linear_input import Codes
from blockscale.kernels.cuda.matmul.linear_launch import PARTS, Ends, Tile, Weight
from blockscale.kernels.cuda.matmul.linear_reading import Reading
from blockscale.kernels.cuda.replay.direct import cdiv, direct, power_of_2
from blockscale.kernels.cuda.spec import spec

_FLOAT8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
_LARGEST_SUM = 2**31 // (128 * 128)  # products of two int8 that an int32 holds


def pair(fmt: str, element: str, k: int, dtype: torch.dtype) -> str:
    """How codes of x [rows, k] of this element meet the weight's: "int8", "fp8", or "" if not.

    The weight has one scale a row, too. dtype: of the result; sums of float8 products have fewer
    bits than a float32 shows (docs/numerics.md, section 7).
    """
    form = parse(fmt)
    height, width = form.block.sizes_for(2)
    if form.asym or (width != WHOLE and width < k) or height not in (1, WHOLE):
        return ""
    if form.element.name == element == "int8":
        return "int8" if k < _LARGEST_SUM else ""
    both = {form.element.name, element}
    if dtype is torch.float32 or float8_sums() == "exact":
        return ""  # as bfloat16, summed in float32: docs/cuda_linear.md
    return "fp8" if both <= set(_FLOAT8) and both != {"e5m2"} else ""


def float8_sums() -> str | None:
    """What the environment says of them: "exact" or nothing."""
    return os.environ.get("BLOCKSCALE_FLOAT8_SUMS")


def coded(
    x: Codes, weight: Weight, fmt: str, ends: Ends, choice: Choice, dtype: torch.dtype
) -> Tensor:
    """x @ weight.T -> [rows, n], with codes of 8 bits and one scale a row on both sides."""
    form = parse(fmt)
    steps = reference.step_of(QParams(weight.scale, weight.outer), form).reshape(-1)
    left, right = x.packed, weight.codes
    if spec(fmt).element.family == "minifloat":
        left, right = left.view(_FLOAT8[x.element]), right.view(_FLOAT8[form.element.name])
    if choice.path == "library" and _library_takes(right, ends, dtype):
        return _library(left, right, steps, ends, dtype)
    tile = choice.tile or Tile(128, 128, 128, 8, 3)
    return _products(left, right, steps, ends, tile, dtype)


def _library_takes(weight: Tensor, ends: Ends, dtype: torch.dtype) -> bool:
    n, k = weight.shape
    biased = ends.bias is None or ends.bias.dtype is dtype
    return not n % 16 and not k % 16 and dtype is torch.bfloat16 and biased and not interpreting()


def _library(x: Tensor, weight: Tensor, steps: Tensor, ends: Ends, dtype: torch.dtype) -> Tensor:
    """cuBLAS: sums of float8 products on a Hopper keep about 14 bits (docs/cuda_linear.md)."""
    n = weight.shape[0]
    assert ends.x_row is not None
    return torch._scaled_mm(
        x, weight.t(), ends.x_row[:, None], steps.expand(n).contiguous()[None, :],
        bias=ends.bias, out_dtype=dtype, use_fast_accum=True,
    )  # fmt: skip


def _products(
    x: Tensor, weight: Tensor, steps: Tensor, ends: Ends, tile: Tile, dtype: torch.dtype
) -> Tensor:
    (rows, k), n = x.shape, weight.shape[0]
    y = torch.empty((rows, n), dtype=dtype, device=x.device)
    kind = "int8" if x.dtype is torch.int8 else "float8"
    grid = (cdiv(rows, tile.rows) * cdiv(n, tile.outputs),)
    direct(linear_codes.multiply_codes)[grid](
        x, weight, ends.x_row, steps, None, ends.bias, y,
        rows, n, k, x.stride(0), weight.stride(0), int(steps.numel() > 1), 0,
        KIND=kind, BM=tile.rows, BN=tile.outputs, BK=tile.words,
        STEPS=cdiv(k, tile.words), BLOCK=0, INNER=1, WHOLE=k % tile.words == 0,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return y


def blocks(
    x: Tensor, weight: Weight, fmt: str, r: Reading, ends: Ends, tile: Tile, dtype: torch.dtype
) -> Tensor:
    """x [rows, k] @ weight.T, the weight's codes in memory as bfloat16, a scale a block."""
    (rows, k), n = x.shape, weight.codes.shape[0]
    parts, ready, w = PARTS[x.dtype], split(x), exact(weight, fmt, r, k)
    steps = weight.scale.to(torch.float32)
    if r.height != 1:
        steps = steps.repeat_interleave(r.height or n, 0)[:n].contiguous()
    last, block = parts == 1, r.width
    turn = tile.words * tile.unroll
    y = x.new_empty((rows, n), dtype=dtype)
    out = y if last else x.new_empty((parts, rows, n), dtype=torch.float32)
    every = parts * rows
    grid = (cdiv(every, tile.rows) * cdiv(n, tile.outputs),)
    direct(linear_codes.multiply_codes)[grid](
        ready, w, ends.x_row if last else None, None, steps, ends.bias if last else None, out,
        every, n, k, ready.stride(0), w.stride(0), 0, steps.stride(0),
        KIND="bfloat16", BM=tile.rows, BN=tile.outputs, BK=tile.words,
        STEPS=cdiv(k, turn), BLOCK=block, INNER=tile.unroll,
        WHOLE=k % turn == 0, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    if not last:
        block = min(power_of_2(n), 1024)
        direct(linear_tile.finish)[(rows, cdiv(n, block))](
            out, None, ends.x_row, ends.bias, y, rows, n, 0, n, count=parts, BLOCK=block
        )
    return y
