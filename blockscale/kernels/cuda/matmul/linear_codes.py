"""Device code for products of codes as they are: int8, float8, or bfloat16 that holds small codes.

Both operands go from memory to the tensor cores; scales meet the sums, at the end or by blocks.
"""

import triton
import triton.language as tl

from blockscale.kernels.cuda.matmul.linear_tile import dot, place, write


@triton.jit
def products(a, b, KIND: tl.constexpr, sums):
    """a @ b + sums: int8 to int32, else to float32."""
    if KIND == "int8":
        found = tl.dot(a, b, sums, out_dtype=tl.int32)
    elif KIND == "bfloat16":
        found = dot(a, b, sums)
    else:
        found = tl.dot(a, b, sums)
    return found


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
    x, weight, x_row, row, steps, bias, out,
    rows, n, k, x_stride, weight_stride, row_stride, step_stride,
    KIND: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    STEPS: tl.constexpr, BLOCK: tl.constexpr, INNER: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """x [rows, k] and weight [n, k] of codes -> out [rows, n], finished.

    x_row [rows], row [n] or [1]: factors of the sums
    steps [n, k / BLOCK] float32: factors of the sums of each block; BLOCK is a multiple of
        BK * INNER, which are summed up first, or 0 for none
    WHOLE: BK divides k
    """
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
    if row is not None:
        sums *= tl.load(row + own * row_stride)[:, None]
    write(sums, x_row, bias, out, rm, rn, rows, n, 0, True)
