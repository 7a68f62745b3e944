# SPDX-License-Identifier: BSD-3-Clause
"""x as the kernels want it: in bfloat16, in the order in which they decode the weight's codes.

A bfloat16 has 8 significant bits, so a float16 is split into two of them and a float32 into three,
which together are x; they take that many times the rows of x, part after part. Within a row,
elements of x lie where the codes that they meet are decoded, so that no code has to move.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockscale.kernels.cuda.device.numerics import float_of, narrow
from blockscale.kernels.cuda.matmul.reading import WORD, Reading
from blockscale.kernels.cuda.relaunch import cdiv, direct, power_of_2

PARTS = {torch.bfloat16: 1, torch.float16: 2, torch.float32: 3}  # of x, each a bfloat16
STEP_WORDS = 16  # words of a row that the fused kernel takes at a time


@triton.jit
def leading(rest, FIRST: tl.constexpr):
    """float32 -> its leading 8 bits as bfloat16, and the residue, exactly."""
    head = float_of(rest.to(tl.int32, bitcast=True) & -65536)
    if FIRST:
        # truncation would make an infinity of a NaN whose payload is in the low bits
        head = tl.where(rest == rest, head, float("nan"))
    finite = tl.abs(rest) < float("inf")
    residue = tl.where(finite, rest, 0.0) - tl.where(finite, head, 0.0)
    return narrow(head, tl.bfloat16), residue


@triton.jit(do_not_specialize=["rows"])
def order_by_planes(
    x, out, rows, words, stride, PLANES: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr
):
    """x [rows, words * PLANES] -> out bfloat16 [PLANES, PARTS * rows, words].

    PARTS: into how many bfloat16 numbers each is split, largest first, exactly: 1 for bfloat16,
    2 for float16, 3 for float32. Each takes the leading 8 bits of what is left.
    A program has BLOCK words of one row.
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


def by_planes(x: Tensor, planes: int) -> Tensor:
    """x [rows, k] -> bfloat16 [planes, parts * rows, k / planes]: what meets the i-th codes of all
    words is the i-th matrix."""
    rows, k = x.shape
    return _by_planes(x, planes, (planes, PARTS[x.dtype] * rows, k // planes))


def in_parts(x: Tensor) -> Tensor:
    """x [rows, k] -> its bfloat16 parts [parts * rows, k], the largest first."""
    rows, k = x.shape
    return x if x.dtype is torch.bfloat16 else _by_planes(x, 1, (PARTS[x.dtype] * rows, k))


def _by_planes(x: Tensor, planes: int, shape: tuple[int, ...]) -> Tensor:
    """What `order_by_planes` makes of x, in memory of this shape."""
    rows, k = x.shape
    words, parts = k // planes, PARTS[x.dtype]
    x = x if x.stride(-1) == 1 else x.contiguous()
    out = x.new_empty(shape, dtype=torch.bfloat16)
    block = max(1, min(power_of_2(words), 2048 // planes))
    direct(order_by_planes)[(rows, cdiv(words, block))](
        x, out, rows, words, x.stride(0), PLANES=planes, PARTS=parts, BLOCK=block
    )
    return out


@triton.jit
def source(to, COUNT: tl.constexpr, APART: tl.constexpr, EACH: tl.constexpr):
    """Which value of a row comes to place `to`. COUNT: values that a word's codes meet.

    Four words are what a thread reads at once. Of the first and the third come the first pairs, the
    second pairs …, then those of the second and the fourth: as the tensor core takes them.
    APART: a word's i-th pair is i and COUNT / 2 + i, else it is 2 i and 2 i + 1
    EACH: words of a small block, 4 or 8, else 0. Then a thread reads two of 8 words. 6 for codes of
        6 bits: 64 of a thread, in whose halves i and 16 + i are pairs
    """
    GROUP: tl.constexpr = 64 if EACH == 6 else (8 * COUNT if EACH else 4 * COUNT)
    inside = to % GROUP
    second, i = inside % 2, inside // 2
    if EACH == 6:
        word = i // (COUNT // 2)
    elif EACH:
        thread, i = i // COUNT, i % COUNT
        upper = i // (COUNT // 2)
        word = upper * 4 + thread if EACH == 4 else thread * 2 + upper
    else:
        word = i % 2 * 2 + i // COUNT
        i = i // 2
    i = i % (COUNT // 2)
    return to - inside + word * COUNT + (i + second * (COUNT // 2) if APART else 2 * i + second)


@triton.jit(do_not_specialize=["rows"])
def order_for_few(
    x, out, rows, k, stride, width, COUNT: tl.constexpr, APART: tl.constexpr,
    EACH: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """x [rows, k] -> out bfloat16 [width / 32, PARTS * rows, 32], split as by order_by_planes.

    Four threads share a row of the tensor core's operand. What they load at a time, 8 values each,
    lies together.
    width: up to which x is filled with zeros
    COUNT, APART, EACH: as in `source`. A program has BLOCK places of one row.
    """
    row = tl.program_id(0).to(tl.int64)
    to = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = source(to, COUNT, APART, EACH)
    own: tl.constexpr = 64 if EACH == 6 else (2 * COUNT if EACH else 4 * COUNT)
    load = to // (4 * own) * (own // 8) + to % own // 8
    within = load * (PARTS * rows.to(tl.int64) * 32) + to % (4 * own) // own * 8 + to % 8
    rest = tl.load(x + row * stride + at, mask=at < k, other=0.0)
    rest = rest.to(tl.float32)
    for part in tl.static_range(PARTS):
        head, rest = leading(rest, part == 0)
        place = out + (part * rows.to(tl.int64) + row) * 32 + within
        tl.store(place, head, mask=to < width)


def for_few(x: Tensor, r: Reading, words: int) -> Tensor:
    """x [rows, k] -> bfloat16 [codes / 32, parts * rows, 32], as hopper/few*.py decodes codes.

    words: of a row of the weight, with those that fill the last step; `codes` are theirs
    """
    (rows, k), parts = x.shape, PARTS[x.dtype]
    x = x if x.stride(-1) == 1 else x.contiguous()
    width = words * WORD // r.element.bits
    out = x.new_empty((width // 32, parts * rows, 32), dtype=torch.bfloat16)
    direct(order_for_few)[(rows, cdiv(width, 1024))](
        x, out, rows, k, x.stride(0), width, COUNT=r.planes or 32,
        APART=r.pairs.order[1] != 1, EACH=6 if r.six_bits else (r.words if r.small_blocks else 0),
        PARTS=parts, BLOCK=1024,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["rows"])
def order_for_fused(
    x, out, rows, k, stride, width, PLANES: tl.constexpr, SLOTS: tl.constexpr,
    PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """x [rows, k] -> out bfloat16 [PARTS * rows, width], split as by order_by_planes.

    A row is its groups of 16 words; in a group come the first codes of all words, then the second
    ones … width: that of whole groups, of which what x lacks becomes zeros.
    SLOTS: 0, or the order is that of fused_slots.operand: four words after four, of which come two
        pairs of codes of each, their first pairs before their second. A pair is i and SLOTS + i
        or, where SLOTS is 1, 2 i and 2 i + 1
    A program has BLOCK words of one row.
    """
    row = tl.program_id(0).to(tl.int64)
    if SLOTS == 0:
        word = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        i = tl.arange(0, PLANES)
        at = word[:, None] * PLANES + i[None, :]
        to = (word // 16 * (16 * PLANES) + word % 16)[:, None] + i[None, :] * 16
    else:  # neighbours are written together: they are read from one line of memory anyway
        to = tl.program_id(1) * (BLOCK * PLANES) + tl.arange(0, BLOCK * PLANES)
        inside = to % (4 * PLANES)
        pair, second = inside // 16 * 2 + inside // 8 % 2, inside % 2
        if SLOTS > 1:
            i = second * SLOTS + pair
        else:
            i = 2 * pair + second
        at = to - inside + inside // 2 % 4 * PLANES + i
    rest = tl.load(x + row * stride + at, mask=at < k, other=0.0)
    rest = rest.to(tl.float32)
    for part in tl.static_range(PARTS):
        head, rest = leading(rest, part == 0)
        at = out + (part * rows.to(tl.int64) + row) * width + to
        tl.store(at, head, mask=to < width)


def for_fused(x: Tensor, planes: int, slots: int = 0) -> Tensor:
    """x [rows, k] -> bfloat16 [parts * rows, k rounded up to whole steps of 16 words].

    planes, slots: as PLANES and SLOTS of `order_for_fused`
    """
    rows, k = x.shape
    words, parts = cdiv(k, planes), PARTS[x.dtype]
    width = cdiv(k, STEP_WORDS * planes) * STEP_WORDS * planes
    x = x if x.stride(-1) == 1 else x.contiguous()
    out = x.new_empty((parts * rows, width), dtype=torch.bfloat16)
    block = min(power_of_2(max(words, STEP_WORDS)), 2048 // planes)
    direct(order_for_fused)[(rows, cdiv(width // planes, block))](
        x, out, rows, k, x.stride(0), width,
        PLANES=planes, SLOTS=slots, PARTS=parts, BLOCK=block,
    )  # fmt: skip
    return out
