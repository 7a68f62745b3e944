"""Device code of linear layers: weights decoded in registers, multiplied by the tensor cores.

The i-th codes of all words are one matrix, multiplied by the i-th plane of x (`arrange`), so no
code ever moves between threads: words are brought into the layout of the tensor core's operand and
decoded there. Triton does that only where nothing but elementwise operations, views and loads lies
between: widening a loaded byte stops it, so scales are decoded by PTX, too.
"""

import triton
import triton.language as tl

from blockscale.kernels.cuda.device.element import decode
from blockscale.kernels.cuda.device.numerics import INTERPRETED, float_of, narrow
from blockscale.kernels.cuda.device.scale import step_of

GROUP: tl.constexpr = tl.constexpr(8)  # blocks of rows that share what they read of the weight


@triton.jit
def dot(a, b, sums):
    """Products of bfloat16 summed in float32; the interpreter does not know bfloat16."""
    if INTERPRETED:
        found = tl.dot(a.to(tl.float32), b.to(tl.float32), sums)
    else:
        found = tl.dot(a, b, sums)
    return found


@triton.jit
def times(a, b):
    """The product of two bfloat16, exact here."""
    if INTERPRETED:
        found = narrow(a.to(tl.float32) * b.to(tl.float32), tl.bfloat16)
    else:
        found = a * b
    return found


@triton.jit
def less(a, b):
    """bfloat16 less a whole number below 256: integers of at most 8 bits, so exact."""
    if INTERPRETED:
        found = narrow(a.to(tl.float32) - b, tl.bfloat16)
    else:
        found = a - b.to(tl.bfloat16)
    return found


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
        found = narrow(stored, tl.bfloat16)
    elif INTERPRETED:
        found = narrow(step_of(stored.to(tl.int32), 1.0, R.spec), tl.bfloat16)
    else:
        found = tl.inline_asm_elementwise(
            R.decode_scale, "=r,=r,r", [stored], dtype=tl.bfloat16, is_pure=True, pack=4
        )
    return found


@triton.jit
def place(pid, rows, n, BM: tl.constexpr, BN: tl.constexpr):
    """Which block of rows of x and of outputs: those that share either run close together."""
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
    """Sums [outputs, rows] of the words k0 ... k0 + BK, without the factors of rows."""
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
    x, weight, scale, zero, row, x_row, bias, out,
    rows, n, words, weight_stride, scale_stride, scale_count, row_stride,
    R: tl.constexpr, DTYPES: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    STEPS: tl.constexpr, UNROLL: tl.constexpr, WHOLE: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """x's planes [planes, rows, words] bfloat16, words [n, words] -> out.

    row: what the sums of each output are multiplied by; x_row: those of each row of x
    STEPS: times UNROLL tiles along k that one program sums up. Several programs along k need
        LAST = False, which writes float32 [programs, rows, n] without x_row and bias
    WHOLE: the tiles of all programs are the words exactly
    """
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
    if row is not None:
        sums *= tl.load(row + own * row_stride)[:, None]
    write(sums, x_row, bias, out, rm, rn, rows, n, part, LAST)


@triton.jit
def write(sums, x_row, bias, out, rm, rn, rows, n, part, LAST: tl.constexpr):
    """Sums [outputs, rows] -> out: finished, or one part of them."""
    mask = (rm < rows)[None, :] & (rn < n)[:, None]
    index = rm[None, :].to(tl.int64) * n + rn[:, None]
    if LAST:
        if x_row is not None:
            sums *= tl.load(x_row + rm, mask=rm < rows, other=0.0)[None, :]
        if bias is not None:
            sums += tl.load(bias + rn, mask=rn < n, other=0.0).to(tl.float32)[:, None]
        tl.store(out + index, narrow(sums, out.dtype.element_ty), mask=mask)
    else:
        tl.store(out + part * rows.to(tl.int64) * n + index, sums, mask=mask)


@triton.jit(do_not_specialize=["rows"])
def finish(
    parts, row_steps, x_row, bias, out, rows, n, row_stride, out_stride,
    count: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """float32 parts [count, rows, n] -> out [rows, n]: summed from the last, scaled, with bias."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < n
    at = parts + row * n + column
    size = rows.to(tl.int64) * n
    sums = tl.load(at + (count - 1) * size, mask=mask, other=0.0)
    for i in tl.static_range(1, count):
        sums += tl.load(at + (count - 1 - i) * size, mask=mask, other=0.0)
    if row_steps is not None:
        sums *= tl.load(row_steps + column * row_stride, mask=mask, other=0.0)
    if x_row is not None:
        sums *= tl.load(x_row + row)
    if bias is not None:
        sums += tl.load(bias + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + column, narrow(sums, out.dtype.element_ty), mask=mask)


@triton.jit
def leading(rest, FIRST: tl.constexpr):
    """float32 -> its leading 8 bits as bfloat16, and what is left of it, exactly."""
    head = float_of(rest.to(tl.int32, bitcast=True) & -65536)
    if FIRST:
        # truncation would make an infinity of a NaN whose payload is in the low bits
        head = tl.where(rest == rest, head, float("nan"))
    finite = tl.abs(rest) < float("inf")
    left = tl.where(finite, rest, 0.0) - tl.where(finite, head, 0.0)
    return narrow(head, tl.bfloat16), left


@triton.jit(do_not_specialize=["rows"])
def arrange(
    x, out, rows, words, stride, PLANES: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr
):
    """x [rows, words * PLANES] -> out bfloat16 [PLANES, PARTS * rows, words].

    PARTS: into how many bfloat16 numbers each is split, largest first, exactly: 1 for bfloat16,
    2 for float16, 3 for float32. Each takes the leading 8 bits of what is left.
    """
    row = tl.program_id(0).to(tl.int64)
    word = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    i = tl.arange(0, PLANES)
    mask = (word < words)[:, None] & (i < PLANES)[None, :]
    rest = tl.load(x + row * stride + word[:, None] * PLANES + i[None, :], mask=mask, other=0.0)
    rest = rest.to(tl.float32)
    for part in tl.static_range(PARTS):
        head, rest = leading(rest, part == 0)
        at = (i[None, :] * PARTS + part) * rows.to(tl.int64) + row
        tl.store(out + at * words + word[:, None], head, mask=mask)
