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

import triton
import triton.language as tl

from blockscale.kernels.cuda.matmul.finish import times_outputs, write
from blockscale.kernels.cuda.matmul.tile_kernel import dot, place


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
