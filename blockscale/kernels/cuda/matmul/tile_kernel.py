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

import triton
import triton.language as tl

from blockscale.kernels.cuda.device.element import decode
from blockscale.kernels.cuda.device.numerics import INTERPRETED, narrow
from blockscale.kernels.cuda.device.scale import step_of
from blockscale.kernels.cuda.matmul.finish import times_outputs, write

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
