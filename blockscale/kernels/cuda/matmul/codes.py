# SPDX-License-Identifier: BSD-3-Clause
"""Device code of the ways "codes" and "blocks": both operands go from memory to the tensor cores.

They are codes as they are, int8 or float8, or bfloat16 that holds codes of at most 8 bits. Scales
meet the sums, at the end or by blocks. The terms: the glossary in matmul/__init__.py.

Legend of `multiply_codes`
x: int8, float8 or bfloat16 [rows, k], rows x_stride apart; weight: likewise [n, k]
x_row: float32 [rows] or None, of the rows of x
factors: float32 [n] or [1] of the outputs, factor_stride apart, or None
steps: float32 [n, k / BLOCK], rows step_stride apart: factors of the sums of each block, or None
    where BLOCK is 0
bias: [n] or None
out: [rows, n]; where x has several parts, they are its rows, and out their sums in float32
KIND: "int8", "float8" or "bfloat16", of both operands
BM, BN, BK: rows of x, outputs and codes along k of a tile
STEPS: times INNER tiles along k that are summed up
BLOCK: codes of a block, a multiple of BK * INNER, or 0 for one scale a row
WHOLE: whether BK * INNER divides k
Grid: tiles of the result.
"""

import os
from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockscale.core import reference
from blockscale.core.block import WHOLE
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.core.torch_private import scaled_mm
from blockscale.kernels.cuda import interpreting
from blockscale.kernels.cuda.matmul.finish import Ends, times_outputs, write
from blockscale.kernels.cuda.matmul.operands import (
    Codes,
    ProductCall,
    Weight,
    columns,
    worth_measuring,
)
from blockscale.kernels.cuda.matmul.tile import dot, place
from blockscale.kernels.cuda.relaunch import cdiv, direct


@triton.jit
def products(a, b, KIND: tl.constexpr, sums):
    """a @ b + sums: int8 to int32, else to float32."""
    if KIND == "int8":
        sums = tl.dot(a, b, sums, out_dtype=tl.int32)
    elif KIND == "bfloat16":
        sums = dot(a, b, sums)
    else:
        tl.static_assert(KIND == "float8")
        sums = tl.dot(a, b, sums)
    return sums


@triton.jit
def tiles(at_w, at_x, k0, k, BK: tl.constexpr, WHOLE: tl.constexpr):
    """Codes k0 ... k0 + BK of the weight and of x; zeros beyond k."""
    rk = tl.arange(0, BK)
    if WHOLE:
        w_tile = tl.load(at_w + k0)
        x_tile = tl.load(at_x + k0)
    else:
        w_tile = tl.load(at_w + k0, mask=(rk < k - k0)[None, :], other=0.0)
        x_tile = tl.load(at_x + k0, mask=(rk < k - k0)[:, None], other=0.0)
    return w_tile, x_tile


@triton.jit
def block_sums(
    at_w, at_x, k0, k, KIND: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    INNER: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Sums of INNER tiles, float32."""
    part = tl.zeros((BN, BM), tl.float32)
    for u in tl.static_range(INNER):
        w_tile, x_tile = tiles(at_w, at_x, k0 + u * BK, k, BK, WHOLE)
        part = products(w_tile, x_tile, KIND, part)
    return part


@triton.jit(do_not_specialize=["rows"])
def multiply_codes(
    x, weight, x_row, factors, steps, bias, out,
    rows, n, k, x_stride, weight_stride, factor_stride, step_stride,
    KIND: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    STEPS: tl.constexpr, BLOCK: tl.constexpr, INNER: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """x @ weight.T of codes in memory; the legend is at the top of the file."""
    pm, pn = place(tl.program_id(0), rows, n, BM, BN)
    rn = pn * BN + tl.arange(0, BN)
    rm = pm * BM + tl.arange(0, BM)
    rk = tl.arange(0, BK)
    own = tl.minimum(rn, n - 1).to(tl.int64)
    mine = tl.minimum(rm, rows - 1).to(tl.int64)
    at_w = weight + own[:, None] * weight_stride + rk[None, :]
    at_x = x + mine[None, :] * x_stride + rk[:, None]
    sums = tl.zeros((BN, BM), tl.int32 if KIND == "int8" else tl.float32)
    for step in range(STEPS):
        k0 = step * BK * INNER
        if BLOCK > 0:
            by = tl.load(steps + own * step_stride + tl.minimum(k0, k - 1) // BLOCK)
            part = block_sums(at_w, at_x, k0, k, KIND, BM, BN, BK, INNER, WHOLE)
            sums += part * by[:, None]
        else:
            w_tile, x_tile = tiles(at_w, at_x, k0, k, BK, WHOLE)
            sums = products(w_tile, x_tile, KIND, sums)
    sums = sums.to(tl.float32)
    sums = times_outputs(sums, factors, own, factor_stride)
    write(sums, x_row, bias, out, rm, rn, rows, n, 0, True)


# The ways "codes" and "library": codes times codes, int8 and float8 on their own tensor cores.
#
# Both sides have one scale a row, which meets the sums. "library" is torch._scaled_mm, of float8.

_FLOAT8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
_LARGEST_SUM = 2**31 // (128 * 128)  # products of two int8 that an int32 holds


class CodesSettings(NamedTuple):
    """rows, outputs, codes: of x, of the weight and of each of their rows in a tile
    warps, stages: of a program: its warps, and the steps along k whose loads are under way
    """

    rows: int
    outputs: int
    codes: int
    warps: int
    stages: int

    @classmethod
    def read(cls, numbers: Sequence[int]) -> "CodesSettings":
        """The settings of a table's entry."""
        return cls(*columns(numbers)[:5])

    def entry(self) -> tuple[int, ...]:
        """The numbers that a table has of them."""
        return (*self, 1, 1)


class LibrarySettings(NamedTuple):
    """The library chooses for itself."""

    @classmethod
    def read(cls, numbers: Sequence[int]) -> "LibrarySettings":
        """The settings of a table's entry, which has no numbers that count."""
        del numbers
        return cls()

    def entry(self) -> tuple[int, ...]:
        """The numbers that a table has of them: none."""
        return ()


_FEW_ROWS, _MORE_ROWS = CodesSettings(16, 128, 256, 4, 3), CodesSettings(64, 128, 128, 4, 4)
ANY_ROWS = CodesSettings(32, 64, 128, 4, 4)  # where a row's sums must not depend on their number
_UNTAKEN = CodesSettings(128, 128, 128, 8, 3)  # of products that the library does not take
_TO_MEASURE = (CodesSettings(16, 64, 256, 4, 3), CodesSettings(16, 128, 128, 4, 4), _FEW_ROWS,
               CodesSettings(32, 64, 128, 4, 4), _MORE_ROWS, CodesSettings(64, 64, 128, 4, 4),
               _UNTAKEN, CodesSettings(128, 128, 128, 4, 3), CodesSettings(128, 256, 128, 8, 3),
               CodesSettings(256, 128, 128, 8, 3), CodesSettings(128, 256, 64, 8, 4),
               CodesSettings(256, 128, 64, 8, 4))  # fmt: skip


def usual(call: ProductCall) -> CodesSettings:
    """What is taken where nothing was measured."""
    return _FEW_ROWS if call.rows <= 16 else _MORE_ROWS


def to_measure(call: ProductCall) -> list[CodesSettings]:
    """What `tune` measures for a call."""
    return [settings for settings in _TO_MEASURE if worth_measuring(settings.rows, call)]


def pair(fmt: str, element: str, k: int, dtype: torch.dtype) -> str:
    """How codes of x [rows, k] of this element meet the weight's: "int8", "fp8", or "" if not.

    The weight has one scale a row, too. dtype: of the result; sums of float8 products have fewer
    bits than a float32 shows (docs/numerics.md, section 7).
    """
    form = parse(fmt)
    height, width = form.block.sizes_for(2)
    if form.asym or form.offset is not None:
        return ""
    if (width != WHOLE and width < k) or height not in (1, WHOLE):
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


def codes(
    x: Codes,
    weight: Weight,
    fmt: str,
    ends: Ends,
    settings: CodesSettings | LibrarySettings,
    dtype: torch.dtype,
) -> Tensor:
    """x @ weight.T -> [rows, n] of dtype, of codes of 8 bits with one scale a row on both sides."""
    form = parse(fmt)
    steps = reference.step_of(QParams(weight.scale, weight.outer), form).reshape(-1)
    left, right = x.packed, weight.codes
    if form.element.name in _FLOAT8:
        left, right = left.view(_FLOAT8[x.element]), right.view(_FLOAT8[form.element.name])
    if isinstance(settings, LibrarySettings):
        if _library_takes(right, ends, dtype):
            return _library(left, right, steps, ends, dtype)
        settings = _UNTAKEN
    return _products(left, right, steps, ends, settings, dtype)


def _library_takes(weight: Tensor, ends: Ends, dtype: torch.dtype) -> bool:
    n, k = weight.shape
    biased = ends.bias is None or ends.bias.dtype is dtype
    return not n % 16 and not k % 16 and dtype is torch.bfloat16 and biased and not interpreting()


def _library(x: Tensor, weight: Tensor, steps: Tensor, ends: Ends, dtype: torch.dtype) -> Tensor:
    """cuBLAS: sums of float8 products on a Hopper keep about 14 bits (docs/cuda_linear.md)."""
    n = weight.shape[0]
    assert ends.x_row is not None
    return scaled_mm(
        x, weight.t(), ends.x_row[:, None], steps.expand(n).contiguous()[None, :],
        bias=ends.bias, out_dtype=dtype, use_fast_accum=True,
    )  # fmt: skip


def _products(
    x: Tensor, weight: Tensor, steps: Tensor, ends: Ends, settings: CodesSettings,
    dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """By `multiply_codes`. steps: float32 [n] or [1], the factors of the outputs."""
    (rows, k), n = x.shape, weight.shape[0]
    y = torch.empty((rows, n), dtype=dtype, device=x.device)
    grid = (cdiv(rows, settings.rows) * cdiv(n, settings.outputs),)
    direct(multiply_codes)[grid](
        x, weight, ends.x_row, steps, None, ends.bias, y,
        rows, n, k, x.stride(0), weight.stride(0), int(steps.numel() > 1), 0,
        KIND="int8" if x.dtype is torch.int8 else "float8",
        BM=settings.rows, BN=settings.outputs, BK=settings.codes,
        STEPS=cdiv(k, settings.codes), BLOCK=0, INNER=1, WHOLE=k % settings.codes == 0,
        num_warps=settings.warps, num_stages=settings.stages,
    )  # fmt: skip
    return y
