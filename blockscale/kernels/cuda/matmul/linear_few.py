"""Few rows of x: codes decoded in the registers that memory delivers them to.

The device code is hopper/few.py; for small blocks that have float scales, hopper/few_blocks.py; for
6-bit codes, hopper/few_six.py.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockscale.kernels.cuda.matmul import linear_tile
from blockscale.kernels.cuda.matmul.linear_launch import (
    PARTS,
    Ends,
    Tile,
    Weight,
    as_words,
    row_steps,
)
from blockscale.kernels.cuda.matmul.linear_reading import SMALLEST_TILE, WORD, Reading
from blockscale.kernels.cuda.replay.direct import cdiv, direct, power_of_2


def small(r: Reading) -> bool:
    """Whether the sums of blocks have scales, and blocks are less than what few.py sums up."""
    return r.per_block and r.words < SMALLEST_TILE


def six(r: Reading) -> bool:
    """Whether codes are 6 bits that hopper/few_six.py reads."""
    return not r.planes and bool(r.pairs.program)


def turn(r: Reading) -> int:
    """Words that a program takes at a time where nothing else was measured: a line of memory."""
    return 48 if six(r) else 32


def takes(r: Reading, words: int) -> bool:
    """Whether steps of so many words go with the blocks of the weight."""
    if small(r):
        return r.words in (4, 8) and words <= 32 and (not r.zero or r.planes > 4)
    if six(r):
        return words == turn(r)
    return r.planes > 0 and words in (16, 32, 64) and r.words != 1


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
def order(
    x, out, rows, k, stride, width, COUNT: tl.constexpr, APART: tl.constexpr,
    EACH: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """x [rows, k] -> out bfloat16 [width / 32, PARTS * rows, 32], split as by arrange.

    Four threads share a row of the tensor core's operand. What they load at a time, 8 values each,
    lies together.
    width: up to which x is filled with zeros
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
        head, rest = linear_tile.leading(rest, part == 0)
        place = out + (part * rows.to(tl.int64) + row) * 32 + within
        tl.store(place, head, mask=to < width)


def ordered(x: Tensor, r: Reading, words: int) -> Tensor:
    """x [rows, k] -> bfloat16 [codes / 32, parts * rows, 32], as codes are decoded."""
    (rows, k), parts = x.shape, PARTS[x.dtype]
    x = x if x.stride(-1) == 1 else x.contiguous()
    count = r.planes or 32
    width = words * WORD // r.element.bits
    out = x.new_empty((width // 32, parts * rows, 32), dtype=torch.bfloat16)
    direct(order)[(rows, cdiv(width, 1024))](
        x, out, rows, k, x.stride(0), width, COUNT=count,
        APART=r.pairs.order[1] != 1, EACH=6 if six(r) else (r.words if small(r) else 0),
        PARTS=parts, BLOCK=1024,
    )  # fmt: skip
    return out


def few(
    x: Tensor, weight: Weight, fmt: str, r: Reading, ends: Ends, tile: Tile, dtype: torch.dtype
) -> Tensor:
    """x [rows, k] @ weight.T -> [rows, n] of dtype. All but stages and unroll of the tile count."""
    (rows, k), n = x.shape, weight.codes.shape[0]
    words, parts = k * r.element.bits // WORD, PARTS[x.dtype]
    steps = cdiv(words, tile.chunks * tile.words)
    chunks = cdiv(words, steps * tile.words)
    last = chunks * parts == 1
    y = x.new_empty((rows, n), dtype=dtype)
    out = y if last else x.new_empty((chunks * parts, rows, n), dtype=torch.float32)
    ready = ordered(x, r, chunks * steps * tile.words)
    _sums(ready, weight, row_steps(weight, fmt, r), r, ends if last else None, tile, steps, out)
    if not last:
        block = min(power_of_2(n), 1024)
        direct(linear_tile.finish)[(rows, cdiv(n, block))](
            out, None, ends.x_row, ends.bias, y, rows, n, 0, n, count=chunks * parts, BLOCK=block
        )
    return y


def _sums(
    x: Tensor, weight: Weight, rows: tuple[Tensor | None, int], r: Reading, ends: Ends | None,
    tile: Tile, steps: int, out: Tensor,
) -> None:  # fmt: skip
    """x as `ordered` gives it @ weight.T -> out: finished with `ends`, else in parts [., ., n]."""
    from blockscale.kernels.cuda.matmul.hopper import few, few_blocks, few_six

    every, (n, size), width = x.shape[1], weight.codes.shape, tile.words * WORD
    words = size * weight.codes.itemsize * 8 // WORD
    chunks = x.shape[0] * 32 * r.element.bits // (steps * width)
    height = min(tile.rows, max(8, power_of_2(every)))
    grid = (cdiv(n, tile.outputs), cdiv(every, height), chunks)
    codes: Any = as_words(weight.codes)
    scale = weight.scale
    strides = (codes.stride(0), scale.stride(0) if scale.shape[0] > 1 else 0)
    shape = (every, n, words, *strides, scale.shape[-1])
    given = (ends.x_row if ends else None, ends.bias if ends else None, out, *shape)
    known: dict[str, Any] = {"R": r, "DTYPES": (tl.bfloat16,) * (r.planes or 16), "BM": height}
    known |= {"BN": tile.outputs, "STEPS": steps, "WHOLE": words == chunks * steps * tile.words}
    known |= {"LAST": ends is not None, "num_warps": tile.warps}
    row, row_stride = rows
    if six(r):
        direct(few_six.multiply)[grid](x, codes, scale, row, *given, row_stride, **known)
    elif small(r):
        known["UNROLL"] = tile.words // few_blocks.STEP.value
        direct(few_blocks.multiply)[grid](x, codes, scale, weight.zero_point, *given, **known)
    else:
        known["UNROLL"] = tile.words // few.STEP.value
        direct(few.multiply)[grid](
            x, codes, scale, weight.zero_point, row, *given, row_stride, **known
        )
