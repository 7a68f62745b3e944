# SPDX-License-Identifier: BSD-3-Clause
"""Rows sorted by matrix times a stack [E, n, k] of codes: one launch for all matrices.

A program has a tile of rows of one matrix, and of its outputs. Which matrix that is, is found from
`ends` on the device, so that nothing waits for them and a CUDA graph takes any: the grid has as
many tiles as rows can need, and those beyond do nothing. Where matrices have many rows, a Hopper
decodes codes beside its tensor cores, as in matmul/fused.py, by a table of the tiles. Else, and
where a row's bits must not depend on how many there are, codes are decoded as in matmul/tile.py, in
steps of the size of its ANY_ROWS: a row has the bits that it has alone, and those of `linear` with
the matrix where that keeps to this order (`bs.use(batch_invariant=True)`). Blocks with float scales
that are less than such a step are decoded in the order of k, one block at a time.

Legend, beside that of matmul/tile.py
ends: int32 or int64 [count], where the rows of each matrix end; EACH: a power of two above count
x: bfloat16, [planes, PARTS * rows, words] as order.by_planes leaves it or, of small blocks,
    [PARTS * rows, k]; plane: the numbers of a plane
weight_matrix, scale_matrix, factor_matrix: from one matrix to the next; 0 where all have the same
height: outputs that share a factor
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.operand import UNQUANTIZED, Operand, Quantizer
from blockscale.core.parse import parse
from blockscale.core.scales import TwoLevel
from blockscale.core.stacks import Parts, check_ends, parts_of
from blockscale.kernels.cuda.device.numerics import INTERPRETED
from blockscale.kernels.cuda.linear import how_read, times_row
from blockscale.kernels.cuda.matmul import fused, hopper
from blockscale.kernels.cuda.matmul.finish import Ends, write
from blockscale.kernels.cuda.matmul.fused import FusedSettings
from blockscale.kernels.cuda.matmul.operands import (
    Codes,
    OutputFactors,
    Weight,
    exact_products,
    factors_of,
    kind,
    read,
)
from blockscale.kernels.cuda.matmul.order import PARTS, by_planes, in_parts
from blockscale.kernels.cuda.matmul.reading import SMALLEST_TILE, Reading
from blockscale.kernels.cuda.matmul.tile import (
    ANY_ROWS,
    decoded,
    dot,
    in_registers,
    less,
    place,
    plane_of,
    tile_sums,
)
from blockscale.kernels.cuda.primitives import guard
from blockscale.kernels.cuda.primitives.plan import floats, form
from blockscale.kernels.cuda.relaunch import cdiv, direct, power_of_2
from blockscale.kernels.cuda.replay import replay
from blockscale.kernels.registry import batch_invariant, kernel

_PROCESSORS = 264  # programs that keep an H200 busy: below, tiles have fewer outputs
_MANY = 12  # rows of a matrix, on the average, from which its codes are decoded beside products
_SOME = 3  # where the sums of blocks have scales: the other kernel is slower then


@triton.jit
def matrix_of(
    ends, tile, rows, count, EACH: tl.constexpr, BM: tl.constexpr,
    SHORT: tl.constexpr = 0, LAST: tl.constexpr = 0,
):  # fmt: skip
    """Which matrix the rows of a tile belong to, its first row there and the row after the last.

    Matrix `count` stands for rows after the last end, and a larger one for no rows.
    SHORT: matrices whose last tile would have so many rows or fewer have none for these
    LAST: or only tiles for the last rows, where those are more than SHORT and at most LAST
    """
    i = tl.arange(0, EACH)
    end = tl.load(ends + i, mask=i < count, other=rows)
    start = tl.load(ends + i - 1, mask=(i > 0) & (i <= count), other=0)
    end = tl.minimum(tl.maximum(end, 0), rows).to(tl.int32)
    start = tl.minimum(tl.maximum(start, 0), rows).to(tl.int32)
    size = tl.maximum(end - start, 0)
    if SHORT == 0 and LAST == 0:
        tiles = (size + BM - 1) // BM
    else:
        rest = size % BM
        more = rest > tl.where(i < count, SHORT, 0)
        if LAST > 0:
            start += size - rest
            tiles = (more & (rest <= LAST) & (i < count)).to(tl.int32)
        else:
            tiles = size // BM + more.to(tl.int32)
    tiles = tl.where(i <= count, tiles, 0)
    upto = tl.cumsum(tiles, 0)
    matrix = tl.sum((upto <= tile).to(tl.int32), 0)
    mine = i == matrix
    first = tl.sum(tl.where(mine, start + (tile - upto + tiles) * BM, 0), 0)
    return matrix, first, tl.sum(tl.where(mine, end, 0), 0)


@triton.jit(do_not_specialize=["rows"])
def write_table(
    ends, table, rows, count, EACH: tl.constexpr, BM: tl.constexpr, SHORT: tl.constexpr,
    LAST: tl.constexpr,
):  # fmt: skip
    """`matrix_of` each tile -> table, int32 [tiles, 3]. A program has one tile."""
    tile = tl.program_id(0)
    matrix, first, end = matrix_of(ends, tile, rows, count, EACH, BM, SHORT, LAST)
    tl.store(table + 3 * tile, matrix)
    tl.store(table + 3 * tile + 1, first)
    tl.store(table + 3 * tile + 2, end)


@triton.jit
def in_order(word, R: tl.constexpr, DTYPES: tl.constexpr, BN: tl.constexpr):
    """Words [outputs, words] -> their values bfloat16 [outputs, codes], in the order of k."""
    if INTERPRETED:
        if R.planes == 8:
            first = tl.join(
                tl.join(plane_of(word, 0, R), plane_of(word, 4, R)),
                tl.join(plane_of(word, 2, R), plane_of(word, 6, R)),
            )
            second = tl.join(
                tl.join(plane_of(word, 1, R), plane_of(word, 5, R)),
                tl.join(plane_of(word, 3, R), plane_of(word, 7, R)),
            )
        else:
            first = tl.join(plane_of(word, 0, R), plane_of(word, 2, R))
            second = tl.join(plane_of(word, 1, R), plane_of(word, 3, R))
    else:
        p = decoded(word, R, DTYPES)
        if R.planes == 8:
            first = tl.join(tl.join(p[0], p[4]), tl.join(p[2], p[6]))
            second = tl.join(tl.join(p[1], p[5]), tl.join(p[3], p[7]))
        else:
            first, second = tl.join(p[0], p[2]), tl.join(p[1], p[3])
    return tl.join(first, second).reshape(BN, R.width)  # fmt: skip


@triton.jit
def block_sums(
    x, at_w, scale, zero, at_s, block, row, present, words, k,
    R: tl.constexpr, DTYPES: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Sums [outputs, rows] of a block along k, times its scales. row: int64 [BM], of x [., k]"""
    rw = block * R.words + tl.arange(0, R.words)
    rk = block * R.width + tl.arange(0, R.width)
    word = tl.load(at_w + rw[None, :], mask=(rw < words)[None, :], other=0)
    values = in_order(word, R, DTYPES, BN)
    if R.zero:
        values = less(values, tl.load(zero + at_s + block).to(tl.float32)[:, None])
    meets = tl.load(x + row[None, :] * k + rk[:, None], mask=present & (rk < k)[:, None], other=0.0)
    by = tl.load(scale + at_s + block).to(tl.float32)[:, None]
    return dot(values, meets, tl.zeros((BN, BM), tl.float32)) * by


@triton.jit
def sums_of(
    x, at_w, scale, zero, factors, at_s, row, present, rows, words, k, scale_count,
    R: tl.constexpr, DTYPES: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    STEPS: tl.constexpr, WHOLE: tl.constexpr, SMALL: tl.constexpr,
):  # fmt: skip
    """Sums [outputs, rows] of one part of x, with the factors [outputs] of outputs, if any.

    row: int64 [BM], of all parts; rows: of all parts
    """
    rk = tl.arange(0, BK)
    sums = tl.zeros((BN, BM), tl.float32)
    if SMALL:
        for step in range(STEPS):
            sums += block_sums(
                x, at_w, scale, zero, at_s, step, row, present, words, k, R, DTYPES, BM, BN,
            )  # fmt: skip
    else:
        at_x, at_w = x + row[None, :] * words + rk[:, None], at_w + rk[None, :]
        for step in range(STEPS):
            sums += tile_sums(
                at_x, at_w, scale, zero, at_s, step * BK, present, rows, words, scale_count,
                R, DTYPES, BM, BN, BK, WHOLE,
            )  # fmt: skip
    if not INTERPRETED:
        sums *= R.lift
    return sums if factors is None else sums * tl.load(factors)[:, None]


@triton.jit
def apart(sums, more):
    """sums + more, rounded as where each lay in memory: the factor of `more` stays a product."""
    if INTERPRETED:
        sums += more
    else:
        sums = tl.inline_asm_elementwise(
            "add.rn.f32 $0, $1, $2;", "=f,f,f", [sums, more], tl.float32, is_pure=True, pack=1
        )
    return sums


@triton.jit(do_not_specialize=["rows", "tiles"])
def multiply_groups(
    x, weight, scale, zero, factors, x_row, bias, ends, out,
    rows, n, words, k, count, tiles, weight_stride, weight_matrix, scale_stride, scale_matrix,
    scale_count, factor_matrix, height,
    R: tl.constexpr, DTYPES: tl.constexpr, EACH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, STEPS: tl.constexpr, WHOLE: tl.constexpr, SMALL: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """x @ matrix.T of the matrix of each row; the legend is at the top of the file.

    BK, STEPS, WHOLE: as in tile.py; SMALL: a step is a block (`block_sums`)
    """
    pm, pn = place(tl.program_id(0), tiles * BM, n, BM, BN)
    matrix, first, end = matrix_of(ends, pm, rows, count, EACH, BM)
    rn = pn * BN + tl.arange(0, BN)
    rm = first + tl.arange(0, BM)
    sums = tl.zeros((BN, BM), tl.float32)
    if matrix == count:  # of nobody
        write(sums, None, None, out, rm, rn, end, n, 0, True)
    if matrix >= count:
        return
    own = tl.minimum(rn, n - 1).to(tl.int64)
    which = matrix.to(tl.int64)
    present = (rm < end)[None, :]
    at_w = weight + which * weight_matrix + own[:, None] * weight_stride
    block = own if R.height == 1 else (own // R.height if R.height else own * 0)
    at_s = which * scale_matrix + block * scale_stride
    if factors is not None:
        factors += which * factor_matrix + own // height
    if bias is not None:
        bias += which * n
    for part in tl.static_range(PARTS):  # from the last on, as finish.add_partial_sums adds them
        row = (PARTS - 1 - part) * rows.to(tl.int64) + rm
        own_sums = sums_of(
            x, at_w, scale, zero, factors, at_s, row, present, PARTS * rows, words, k, scale_count,
            R, DTYPES, BM, BN, BK, STEPS, WHOLE, SMALL,
        )  # fmt: skip
        sums = own_sums if part == 0 else apart(sums, own_sums)
    write(sums, x_row, bias, out, rm, rn, end, n, 0, True)


class StackSettings(NamedTuple):
    """rows, outputs: of a tile; warps, stages: of a program."""

    rows: int
    outputs: int
    warps: int
    stages: int


def usual(rows: int, n: int, count: int) -> StackSettings:
    """Tiles of as many rows as a matrix has on the average, where all have the same.

    rows: of x in all; count: of matrices
    """
    each = cdiv(rows, min(rows, count))
    height = min(max(power_of_2(each), 16), 128)
    tiles = most_tiles(rows, count, height)
    if height == 16 and tiles * cdiv(n, 64) < _PROCESSORS:
        return StackSettings(16, 32, 2, 4)
    outputs = 128 if tiles * cdiv(n, 128) >= _PROCESSORS else 64
    return StackSettings(height, outputs, 8 if height > 32 and outputs == 128 else 4, 3)


def tile_table(ends: Tensor, rows: int, height: int, short: int = 0, last: int = 0) -> Tensor:
    """Of each tile of `height` rows its matrix, first row and the row after the last: [tiles, 3].

    rows: of x in all; short, last: as in `matrix_of`
    """
    count = ends.shape[0]
    tiles = min(count, rows) if last else most_tiles(rows, count, height)
    table = ends.new_empty((tiles, 3), dtype=torch.int32)
    direct(write_table)[(tiles,)](
        ends, table, rows, count, EACH=power_of_2(count + 1), BM=height, SHORT=short, LAST=last,
        num_warps=1,
    )  # fmt: skip
    return table


def tile_tables(ends: Tensor, rows: int, heights: Sequence[int]) -> list[Tensor]:
    """Tables of tiles of several heights, the greatest first, which have each row once: what is
    left of a matrix's rows is the tile of least height that holds it."""
    lower = (*heights[1:], 0)
    tall = [tile_table(ends, rows, heights[0], lower[0])]
    return tall + [
        tile_table(ends, rows, heights[0], low, high)
        for high, low in zip(heights[1:], lower[1:], strict=True)
    ]


def most_tiles(rows: int, count: int, height: int) -> int:
    """How many tiles of `height` rows so many rows need at most, of so many matrices and nobody."""
    return rows // height + min(count + 1, rows)


def takes(r: Reading | None, whole: Operand, of: Parts) -> bool:
    """Whether the kernel reads the matrices of a stack, which consist of such parts."""
    if r is None or r.further or not r.planes or whole.more:
        return False
    rows = whole.scale.shape[-2]
    if whole.scale.ndim != 3 or (r.width and not r.height and rows > 1):
        return False
    small = r.planes in (4, 8) and r.words & (r.words - 1) == 0 and r.width >= SMALLEST_TILE
    if not (in_registers(r) or small):
        return False
    result = factors_of(whole, r, of.fmt)
    return result is not None and (r.width > 0 or not isinstance(parse(of.fmt).scale, TwoLevel))


FusedTiles = tuple[FusedSettings, ...]  # the tallest first
_LOW, _HIGH, _TALL = FusedSettings(64, 64, 3), FusedSettings(128, 128), FusedSettings(256, 128)


def beside(x: Tensor, whole: Operand, r: Reading, dtype: torch.dtype) -> FusedTiles | None:
    """Tiles for decoding beside the tensor cores of a Hopper, where matrices have rows enough on
    the average; None where that is not done."""
    count = whole.codes.shape[0]
    each, least = cdiv(x.shape[0], count), _SOME if r.per_block else _MANY
    short = x.dtype is dtype is torch.bfloat16  # what hides the bits that tensor cores drop
    if not short or batch_invariant() or each < least or not hopper.can_run(whole.codes[0]):
        return None
    every = (_LOW,) if each <= 96 else (_HIGH, _LOW) if each <= 160 else (_TALL, _HIGH, _LOW)
    tiles = tuple(s for s in every if fused.takes(r, s))
    return tiles if tiles and fused.takes(r, _LOW) else None


def with_fused(
    x: Tensor,
    whole: Operand,
    ends: Tensor,
    fmt: str,
    r: Reading,
    row: Tensor | None,
    bias: Tensor | None,
    settings: FusedTiles,
) -> Tensor:
    """As `grouped`, of x and a result in bfloat16, by the kernel of matmul/fused.py."""
    count, factors, scale = whole.codes.shape[0], factors_of(whole, r, fmt), whole.scale
    assert factors is not None
    zero, tables = whole.zero_point, tile_tables(ends, x.shape[0], [s.rows for s in settings])
    each = scale.stride(0) if scale.shape[0] > 1 else 0
    stacks = [
        (fused.StackTable(table, count, each, factors.apart, factors.height), s)
        for table, s in zip(tables, settings, strict=True)
    ]
    flat = None if zero is None else zero.flatten(0, 1)
    weight = Weight(whole.codes.flatten(0, 1), scale.flatten(0, 1), flat, None)
    by = OutputFactors(factors.values, 1)
    return fused.fused_stack(x, weight, by, stacks, r, Ends(row, bias))


def grouped(
    x: Tensor,
    whole: Operand,
    ends: Tensor,
    fmt: str,
    r: Reading,
    row: Tensor | None,
    bias: Tensor | None,
    dtype: torch.dtype,
    settings: StackSettings | FusedTiles | None = None,
) -> Tensor:
    """x [rows, k] with the matrix of each row, read by `r` -> [rows, n] of dtype.

    whole: a stack that `takes` says yes to, in order; fmt: of a part of its matrices
    row: float32 [rows], a factor of each row of x, or None; bias: [E, n] or None
    """
    (count, n), rows = whole.codes.shape[:2], x.shape[0]
    s = settings or beside(x, whole, r, dtype) or usual(rows, n, count)
    if not isinstance(s, StackSettings):
        return with_fused(x, whole, ends, fmt, r, row, bias, s)
    small, parts = not in_registers(r), PARTS[x.dtype]
    ready = in_parts(x).contiguous() if small else by_planes(x, r.planes)
    words = whole.codes.shape[2] * whole.codes.itemsize // 4
    codes: Any = whole.codes.view(torch.int32)
    step = r.words if small else ANY_ROWS.words
    steps, tiles = cdiv(words, step), most_tiles(rows, count, s.rows)
    factors, scale = factors_of(whole, r, fmt), whole.scale
    assert factors is not None
    y = x.new_empty((rows, n), dtype=dtype)
    direct(multiply_groups)[(tiles * cdiv(n, s.outputs),)](
        ready, codes, scale, whole.zero_point, factors.values, row, bias, ends, y,
        rows, n, words, x.shape[1], count, tiles, codes.stride(1), codes.stride(0),
        scale.stride(1) if scale.shape[1] > 1 else 0,
        scale.stride(0) if scale.shape[0] > 1 else 0, scale.shape[2],
        factors.apart, factors.height,
        R=r, DTYPES=(tl.bfloat16,) * r.planes, EACH=power_of_2(count + 1),
        BM=s.rows, BN=s.outputs, BK=step, STEPS=steps, WHOLE=words == steps * step, SMALL=small,
        PARTS=parts, num_warps=s.warps, num_stages=s.stages,
    )  # fmt: skip
    return y


# The op.


def _how_exact(x: Tensor, *_: Any) -> str | None:
    """What `how_read` and `beside` decide by, beside a call's arguments."""
    if x.dtype is not torch.bfloat16:
        return None
    return "rows" * batch_invariant() + (exact_products() or "")


def _supports(formats: tuple[Format, ...], arguments: tuple[Any, ...]) -> bool:
    del formats
    x, whole, _, _, by = arguments
    result = parts_of(whole)
    if result is None or x.ndim != 2 or not x.dtype.is_floating_point or x.dtype.itemsize > 4:
        return False
    if x.shape[1] != whole.size or not _in_words(whole.codes) or not _row_by_row(by):
        return False
    values = x[:0].to(torch.bfloat16) if by.fmt else x[:0]
    return takes(how_read(values, result.fmt, x.dtype), whole, result)


def _in_words(codes: Tensor) -> bool:
    """Whether the codes of a stack lie so that rows are words, one after another."""
    row = codes.shape[-1] * codes.itemsize
    return codes.is_contiguous() and row % 4 == 0 and codes.data_ptr() % 4 == 0


def _row_by_row(by: Quantizer) -> bool:
    """Whether an input format gives each row the scales that it has alone, so that the rows of all
    matrices are quantized together."""
    if not by.fmt:
        return True
    form = by.format
    rows, _ = form.block.sizes_for(2)
    plain = by.scale is None and by.seed is None and form.offset is None and not form.block.flat
    return plain and rows == 1 and kind(by.fmt, 2) in ("codes", "powers")


@kernel("grouped_linear", backend="cuda", supports=_supports)
@replay(also=_how_exact)
def grouped_linear(
    x: Tensor,
    weight: Operand,
    ends: Tensor,
    bias: Tensor | None = None,
    input: Quantizer = UNQUANTIZED,
) -> Tensor:
    """As ops.grouped_linear.grouped_linear."""
    check_ends(x, weight, ends)
    x = floats(x)
    count, n = weight.codes.shape[:2]
    whole = _check(weight)
    if not x.numel() or not n:
        return x.new_zeros(x.shape[0], n)
    result = parts_of(weight)
    assert result is not None
    bias = None if bias is None else bias.expand(count, n).contiguous()
    with guard(x):
        rest = read(x, input)
        values = rest.values() if isinstance(rest, Codes) else rest
        r = how_read(values.x, result.fmt, x.dtype)
        assert r is not None  # `_supports` asked
        if r.multiplier != 1.0:
            values = replace(values, row=times_row(values, 1 / r.multiplier))
        return grouped(values.x, whole, ends, result.fmt, r, values.row, bias, x.dtype)


def _check(weight: Operand) -> Operand:
    """The stack in order. Raises ValueError if its parts do not fit the format."""
    stored = form(weight.fmt)
    codes = stored.checked_codes(weight.codes, weight.shape)
    scale, zero_point, outer = weight.scale, weight.zero_point, weight.outer
    parts = stored.checked_parts(
        weight.shape, scale, zero_point, outer, codes.device, weight.more
    )  # as they are: not an outer scale for each block
    return weight._replace(
        codes=codes, scale=parts.scale, zero_point=parts.zero_point, outer=parts.outer
    )
