# SPDX-License-Identifier: BSD-3-Clause
"""Device code of the way "tile": codes decoded in registers and multiplied by the tensor cores.

The i-th codes of all words are one matrix, multiplied by the i-th plane of x (order.py), so no
code ever moves between threads: words are brought into the layout of the tensor core's operand and
decoded there. Triton does that only where nothing but elementwise operations, views and loads lies
between: widening a loaded byte stops it, so scales are decoded by PTX, too.
Words, planes, blocks and the other terms: the glossary in matmul/__init__.py.

Legend of `multiply` and what it calls
x: bfloat16 [planes, rows, words], as order.by_planes leaves it
weight: int32 [n, words], rows weight_stride words apart
scale: as it is stored, [blocks of rows, scale_count], rows scale_stride apart; zero: int32,
    likewise, or None
factors: float32 [n] or [1] of the outputs, factor_stride apart, or None
x_row: float32 [rows] or None; bias: [n] or None
out: [rows, n], or float32 partial sums [programs along k, rows, n]
R: the weight's Reading; DTYPES: what its PTX gives, bfloat16 for each plane
BM, BN, BK: rows of x, outputs and words of a tile
STEPS: times UNROLL tiles along k that one program sums up
WHOLE: whether the tiles of all programs are the words exactly
LAST: whether a program's sums are all there are, and become the result: then `out` has its dtype.
    Else x_row and bias are None, and `out` takes partial sums
at_x [BK, BM], at_w [BN, BK]: pointers to the first words of x's plane 0 and of the weight
at_s: where each output's first scale lies, int64 [BN]; present: bool [1, BM], rows that exist
Grid: tiles of the result, programs along k.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockscale.kernels.cuda.device.element import decode
from blockscale.kernels.cuda.device.numerics import INTERPRETED, narrow
from blockscale.kernels.cuda.device.scale import step_of
from blockscale.kernels.cuda.matmul.finish import NO_ENDS, Ends, result, times_outputs, write
from blockscale.kernels.cuda.matmul.operands import (
    ProductCall,
    Weight,
    as_words,
    columns,
    output_factors,
    scale_stride,
    tile_rows,
    worth_measuring,
)
from blockscale.kernels.cuda.matmul.order import by_planes
from blockscale.kernels.cuda.matmul.reading import SMALLEST_TILE, Reading
from blockscale.kernels.cuda.relaunch import cdiv, direct

GROUP: tl.constexpr = tl.constexpr(8)  # tiles of rows that share what they read of the weight


@triton.jit
def dot(a, b, sums):
    """Products of bfloat16 summed in float32; the interpreter does not know bfloat16."""
    if INTERPRETED:
        sums = tl.dot(a.to(tl.float32), b.to(tl.float32), sums)
    else:
        sums = tl.dot(a, b, sums)
    return sums


@triton.jit
def times(a, b):
    """The product of two bfloat16, exact here."""
    if INTERPRETED:
        product = narrow(a.to(tl.float32) * b.to(tl.float32), tl.bfloat16)
    else:
        product = a * b
    return product


@triton.jit
def less(a, b):
    """bfloat16 less a whole number below 256: integers of at most 8 bits, so exact."""
    if INTERPRETED:
        difference = narrow(a.to(tl.float32) - b, tl.bfloat16)
    else:
        difference = a - b.to(tl.bfloat16)
    return difference


@triton.jit
def decoded(word, R: tl.constexpr, DTYPES: tl.constexpr):
    """Words [rows, words] -> for each plane bfloat16 [rows, words]."""
    return tl.inline_asm_elementwise(
        R.decode, R.registers, [word], dtype=DTYPES, is_pure=True, pack=2
    )


@triton.jit
def plane_of(word, i: tl.constexpr, R: tl.constexpr):
    """The i-th of `decoded`, in plain Triton."""
    return narrow(decode(word >> (i * R.element.bits), R.element), tl.bfloat16)


@triton.jit
def factor(stored, R: tl.constexpr):
    """Stored scales of blocks -> bfloat16, exact."""
    if R.fold == "floats":
        by = narrow(stored, tl.bfloat16)
    elif INTERPRETED:
        by = narrow(step_of(stored.to(tl.int32), 1.0, R.spec), tl.bfloat16)
    else:
        by = tl.inline_asm_elementwise(
            R.decode_scale, "=r,=r,r", [stored], dtype=tl.bfloat16, is_pure=True, pack=4
        )
    return by


@triton.jit
def place(pid, rows, n, BM: tl.constexpr, BN: tl.constexpr):
    """Which tile of rows of x and which of outputs is program `pid`'s.

    GROUP tiles of rows and all tiles of outputs are one run, so that programs that read the same of
    the weight, or of x, run close together.
    """
    down, across = tl.cdiv(rows, BM), tl.cdiv(n, BN)
    first = pid // (GROUP * across) * GROUP
    height = tl.minimum(down - first, GROUP)
    inside = pid % (GROUP * across)
    return first + inside % height, inside // height


@triton.jit
def tile_sums(
    at_x, at_w, scale, zero, at_s, k0, present, rows, words, scale_count,
    R: tl.constexpr, DTYPES: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    """Sums [outputs, rows] of the words k0 ... k0 + BK, without the factors of rows and outputs."""
    rk = tl.arange(0, BK)
    count: tl.constexpr = R.planes
    mask = present if WHOLE else present & (rk < words - k0)[:, None]
    if WHOLE:
        word = tl.load(at_w + k0)
    else:
        word = tl.load(at_w + k0, mask=(rk < words - k0)[None, :], other=0)
    if R.fold != "":
        stored = stored_scales(scale, at_s, k0, scale_count, R, BK, WHOLE)
        columns: tl.constexpr = max(BK // R.words, 1)
        step = factor(stored, R)
        step = step[:, :, None].broadcast_to(BN, columns, BK // columns).reshape(BN, BK)
    if R.words > 0:
        block = tl.minimum(k0 // R.words, scale_count - 1)
    else:
        block = 0
    if R.zero:
        offset = tl.load(zero + at_s + block).to(tl.float32)[:, None]
    if R.per_block:
        by = tl.load(scale + at_s + block).to(tl.float32)[:, None]
    sums = tl.zeros((BN, BM), tl.float32)
    if not INTERPRETED:
        planes = decoded(word, R, DTYPES)
    for i in tl.static_range(count):
        value = plane_of(word, i, R) if INTERPRETED else planes[i]
        if R.zero:
            value = less(value, offset)
        if R.fold != "":
            value = times(value, step)
        at = at_x + k0 + i * (rows.to(tl.int64) * words)
        sums = dot(value, tl.load(at, mask=mask, other=0.0), sums)
    return sums * by if R.per_block else sums


@triton.jit
def stored_scales(
    scale, at_s, k0, scale_count, R: tl.constexpr, BK: tl.constexpr, WHOLE: tl.constexpr
):
    """The stored scales [outputs, blocks] of words from k0 on."""
    columns: tl.constexpr = max(BK // R.words, 1)
    rs = tl.arange(0, columns)
    first = k0 // R.words
    at = scale + at_s[:, None] + first + rs[None, :]
    if WHOLE:
        stored = tl.load(at)
    else:
        stored = tl.load(at, mask=(rs < scale_count - first)[None, :], other=0)
    return stored


@triton.jit(do_not_specialize=["rows"])
def multiply(
    x, weight, scale, zero, factors, x_row, bias, out,
    rows, n, words, weight_stride, scale_stride, scale_count, factor_stride,
    R: tl.constexpr, DTYPES: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    STEPS: tl.constexpr, UNROLL: tl.constexpr, WHOLE: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """x @ weight.T of codes that are decoded in registers; the legend is at the top of the file."""
    pm, pn = place(tl.program_id(0), rows, n, BM, BN)
    part = tl.program_id(1)
    rn = pn * BN + tl.arange(0, BN)
    rm = pm * BM + tl.arange(0, BM)
    rk = tl.arange(0, BK)
    own = tl.minimum(rn, n - 1).to(tl.int64)
    present = (rm < rows)[None, :]
    at_x = x + rm[None, :].to(tl.int64) * words + rk[:, None]
    at_w = weight + own[:, None] * weight_stride + rk[None, :]
    block = own if R.height == 1 else (own // R.height if R.height else own * 0)
    at_s = block * scale_stride
    sums = tl.zeros((BN, BM), tl.float32)
    for step in range(STEPS):
        for u in tl.static_range(UNROLL):
            k0 = ((part * STEPS + step) * UNROLL + u) * BK
            sums += tile_sums(
                at_x, at_w, scale, zero, at_s, k0, present, rows, words, scale_count,
                R, DTYPES, BM, BN, BK, WHOLE,
            )  # fmt: skip
    if not INTERPRETED:
        sums *= R.lift
    sums = times_outputs(sums, factors, own, factor_stride)
    write(sums, x_row, bias, out, rm, rn, rows, n, part, LAST)


# The way "tile": words go to registers as the tensor core reads them, and are decoded there.
#
# It needs no Hopper, and codes that lie in whole words. The device code stands above.


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

ANY_ROWS = TileSettings(32, 128, 16, 4, 3)  # where a row's sums must not depend on their number


def in_registers(r: Reading) -> bool:
    """Whether codes can be decoded on their way, and need no memory of their own."""
    return r.planes > 0 and (not r.per_block or r.words % SMALLEST_TILE == 0)


def fits(call: ProductCall, r: Reading, settings: TileSettings) -> bool:
    """Whether the codes lie in words, and their blocks allow the tile."""
    if not r.planes:
        return False
    if r.per_block:
        return r.words > 0 and r.words % settings.words == 0
    turns = call.k // r.planes // (settings.words * settings.unroll * settings.split_k)
    return settings.unroll == 1 or turns > 0


def usual(call: ProductCall, r: Reading) -> TileSettings:
    """What is taken where nothing was measured: programs for an H200's 132 processors, twice."""
    rows = min(tile_rows(call.rows, 16), 128)
    words = 16 if rows > 16 or r.per_block else 32
    programs, split_k = cdiv(call.n, 128) * cdiv(call.rows, rows), 1
    while programs * split_k < 256 and call.k // (split_k * 2) >= 1024:
        split_k *= 2
    return TileSettings(rows, 128, words, 8 if rows > 64 else 4, 3, split_k)


def to_measure(call: ProductCall, r: Reading) -> list[TileSettings]:
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
    direct(multiply)[grid](
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
