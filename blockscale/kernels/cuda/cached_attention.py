# SPDX-License-Identifier: BSD-3-Clause
"""Attention of few queries over a cache in codes, which are decoded in registers.

The tokens of a cache are dealt to programs; each has the sums of its part and the largest score,
and a second kernel adds the parts up, first to last. Codes are bfloat16 exactly, so tensor cores
multiply them as they are (matmul/tile.py: the i-th codes of all words are a plane), and scales meet
sums. Scores of a block of features get the block's scale: a query has a column for each block, with
zeros for the features of others. Values likewise: a power times the scale of a token's block has a
row for each block, of which the features of that block are kept. Here are the two kernels and what
starts them; attention_parts.py has what a part sums up to, channel_keys.py the scores of keys per
channel, token_reading.py what codes and scales are read as.

Legend
rows: queries that share a head of keys, those of its heads one after another; M: their power of two
query: [heads of keys in all, rows, depth]
keys, values: int32 [heads of keys in all, tokens, words]; scale: as stored [.., tokens, blocks];
    zero: int32, likewise, or None; outer: float32 [heads of keys in all * tokens] or [1],
    outer_stride apart, or None. Keys per channel: channel_keys.py
recent_keys, recent_values: floats [.., recent, depth], [.., recent, width]
biases: float32, what is added to scores, rows strided; None for nothing
sums, tops, totals: float32 [heads of keys in all, parts, rows, width], [.., parts, rows] twice:
    of each part sums of powers times values, the largest score, the sum of powers
K, V: how keys and values are read, a TokenReading each
steps, WARPS, BT: a part has WARPS warps, and each of them BT tokens in each of `steps` steps
PARTS: bfloat16 numbers that each number of a query is split into, exactly; of keys per channel,
    that one times a scale is: as POWERS
POWERS: how many of a power times a scale: 2 leave 2^-18 of it, 3 2^-27
DEPTH, WIDTH, WK, WV: powers of two of depth, width and words
Grid: parts in codes, then those of recent tokens, BR each; heads of keys in all.
"""

from math import prod
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.operand import Operand
from blockscale.kernels.cuda.attention_parts import finite, of_codes, of_floats, of_folded
from blockscale.kernels.cuda.device.numerics import narrow, widen
from blockscale.kernels.cuda.matmul.order import PARTS
from blockscale.kernels.cuda.primitives import guard
from blockscale.kernels.cuda.primitives.plan import floats, form
from blockscale.kernels.cuda.relaunch import cdiv, direct, power_of_2
from blockscale.kernels.cuda.spec import known
from blockscale.kernels.cuda.token_reading import (
    TokenReading,
    channel_reading,
    reading,
    without_fold,
)
from blockscale.kernels.operand import added_scores, few_queries, tokens_of
from blockscale.kernels.registry import kernel

_RECENT = 32  # recent tokens of a program
_TURN = 64  # parts that are added up at a time
_PROGRAMS = 132  # an H200's processors
_NUMBERS = 1 << 15  # of queries times scales of a program, which its registers hold
_MEMORY = 220_000  # bytes of a program: a little less than its processor has
_FOLDED = ((4, 16), (3, 8), (2, 4))  # times as many, where each has so many steps


@triton.jit(do_not_specialize=[
    "tokens", "recent", "code_parts", "parts", "steps", "added_batch", "added_head", "added_row",
])  # fmt: skip
def attend(
    query, keys, key_scale, key_outer, key_zero, values, value_scale, value_outer, value_zero,
    recent_keys, recent_values, biases, sums, tops, totals,
    tokens, recent, rows, new, depth, width, scaling, shared, code_parts, parts,
    steps, key_outer_stride, value_outer_stride, added_batch, added_head, added_row, bias_token,
    K: tl.constexpr, V: tl.constexpr, TYPES_K: tl.constexpr, TYPES_V: tl.constexpr,
    PARTS: tl.constexpr, POWERS: tl.constexpr, M: tl.constexpr, BT: tl.constexpr, BR: tl.constexpr,
    WK: tl.constexpr, WV: tl.constexpr, DEPTH: tl.constexpr,
    WIDTH: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """One part of the tokens of one head of keys; the legend is at the top of the file."""
    part, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    m = tl.arange(0, M)
    above = (head // shared) * added_batch + (m // new) * added_head + (m % new) * added_row
    above += (head % shared) * (rows // new) * added_head
    query += head * rows * depth
    place = (head * parts + part) * rows
    if part < code_parts:
        of: tl.constexpr = of_folded if K.fold != "" and V.fold != "" else of_codes
        top, total = of(
            query, keys, key_scale, key_outer, key_zero, values, value_scale, value_outer,
            value_zero, biases, sums + place * width, head, part * (steps * WARPS * BT), tokens,
            rows, depth, width, scaling, key_outer_stride, value_outer_stride, above, bias_token,
            steps, K, V, TYPES_K, TYPES_V, PARTS, POWERS, M, BT, WK, WV, WARPS,
        )  # fmt: skip
    else:
        top, total = of_floats(
            query, recent_keys, recent_values, biases, sums + place * width, head,
            (part - code_parts) * BR, tokens, recent, rows, new, depth, width, scaling, above,
            bias_token, M, BR, DEPTH, WIDTH,
        )  # fmt: skip
    tl.store(tops + place + m, top, mask=m < rows)
    tl.store(totals + place + m, total, mask=m < rows)


@triton.jit(do_not_specialize=["parts"])
def add_parts(
    sums, tops, totals, out, sinks, rows, new, shared, parts, width, EACH: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """The parts of one row, EACH at a time -> its result; 0 where it sees nothing. sinks: of each
    head of queries the score of no value, or None"""
    head, row = tl.program_id(1).to(tl.int64), tl.program_id(0)
    rw = tl.arange(0, WIDTH)
    top = tl.zeros((), tl.float32) + float("-inf")
    total = tl.zeros((), tl.float32)
    acc = tl.zeros((WIDTH,), tl.float32)
    if sinks is not None:
        top = widen(tl.load(sinks + (head % shared) * (rows // new) + row // new))
        total = tl.exp(top - finite(top))
    for turn in range(tl.cdiv(parts, EACH)):
        part = turn * EACH + tl.arange(0, EACH)
        there = part < parts
        at = (head * parts + part) * rows + row
        own = tl.load(tops + at, mask=there, other=float("-inf"))
        powers = tl.load(totals + at, mask=there, other=0.0)  # all loads first: they wait together
        more = tl.load(
            sums + at[:, None] * width + rw[None, :],
            mask=there[:, None] & (rw < width)[None, :], other=0.0,
        )  # fmt: skip
        higher = tl.maximum(top, tl.max(own, 0))
        by, less = tl.exp(own - finite(higher)), tl.exp(top - finite(higher))
        total = total * less + tl.sum(powers * by, 0)
        acc = acc * less + tl.sum(more * by[:, None], 0)
        top = higher
    y = acc / tl.where(total == 0.0, 1.0, total)  # no powers, and no sums
    at = (head * rows + row) * width + rw
    tl.store(out + at, narrow(y, out.dtype.element_ty), mask=rw < width)


class PartSettings(NamedTuple):
    """tokens: of a warp's step; steps, warps, stages: of a program."""

    tokens: int
    steps: int
    warps: int
    stages: int


def usual(
    tokens: int, recent: int, heads: int, folded: bool = False, channels: bool = False
) -> PartSettings:
    """Parts for as many programs as an H200 has processors, which begin and end once, or of four
    steps and more for twice as many; with folded scales, of which a processor holds three, for up
    to four times as many; with keys per channel for twice as many, which load nothing ahead where
    they have few steps. Of as many parts all are equally long. The same on other GPUs, so that
    sums have one order."""
    steps = _steps(tokens, recent, heads, folded, channels)
    parts = cdiv(tokens, 128 * steps)
    steps = max(1, cdiv(tokens, 128 * max(parts, 1)))
    return PartSettings(32, steps, 4, 1 if channels and steps <= 8 else 3)


def _steps(tokens: int, recent: int, heads: int, folded: bool, channels: bool) -> int:
    for times, least in _FOLDED if folded else ():
        steps = cdiv(tokens * heads, times * _PROGRAMS * 128)
        if steps >= least:
            return steps
    few, many = (
        max(1, cdiv(tokens * heads, max(each - heads * cdiv(recent, _RECENT), each // 2) * 128))
        for each in (_PROGRAMS, 2 * _PROGRAMS)
    )
    return many if channels or (many >= 4 and not folded) else few


def _supports(formats: tuple[Format, ...], arguments: tuple[Any, ...]) -> bool:
    query, keys, values, *_ = arguments
    if not (known(formats, arguments) and few_queries(arguments)):
        return False
    if not (_readable(keys) and _readable(values)):
        return False
    rows = query.shape[2] * (query.shape[1] // keys.shape[1])
    return bool(warps_for(query, *both_readings(keys, values), rows))


def _readable(whole: Operand) -> bool:
    """Whether codes are read by words, and outer scales are of tokens or of all."""
    if reading_of(whole) is None or whole.more:
        return False
    return whole.outer is None or whole.outer.numel() in (1, prod(whole.shape[:-1]))


@kernel("cached_attention", backend="cuda", supports=_supports)
def cached_attention(
    query: Tensor, keys: Operand, values: Operand, recent_keys: Tensor, recent_values: Tensor,
    mask: Tensor | None, scaling: float, sinks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """As ops.attention.cached_attention."""
    tokens = tokens_of(keys)[2]
    k, v = both_readings(keys, values)
    heads = query.shape[0] * keys.shape[1]
    settings = usual(tokens, recent_keys.shape[2], heads, bool(k.fold and v.fold), bool(k.units))
    with guard(query):
        return attention(
            floats(query), keys, values, (floats(recent_keys), floats(recent_values)), mask,
            scaling, settings, None if sinks is None else floats(sinks),
        )  # fmt: skip


def attention(
    query: Tensor, keys: Operand, values: Operand, recent: tuple[Tensor, Tensor],
    mask: Tensor | None, scaling: float, s: PartSettings, sinks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """By `attend` and `add_parts`."""
    batch, heads, new, depth = query.shape
    _, shared, tokens, _ = tokens_of(keys)
    later, width, rows = recent[0].shape[2], values.size, new * (heads // shared)
    k, v = both_readings(keys, values)
    s = of_whole_words(s, k, warps_for(query, k, v, rows)) if k.units else s
    code_parts = cdiv(tokens, s.tokens * s.warps * s.steps)
    parts, every = code_parts + cdiv(later, _RECENT), batch * shared
    sums = query.new_empty((every, parts, rows, width), dtype=torch.float32)
    tops, totals = (query.new_empty((every, parts, rows), dtype=torch.float32) for _ in "tt")
    m = rows_of_tile(k, v, rows)
    biases = added_scores(mask, (batch, heads, new, tokens + later))
    strides = [0] * 4 if biases is None else strides_of(biases)
    direct(attend)[(parts, every)](
        query, *_memory(keys), *_memory(values), *recent, biases, sums, tops, totals,
        tokens, later, rows, new, depth, width, scaling, shared, code_parts, parts, s.steps,
        *(int(o.outer is not None and o.outer.numel() > 1) for o in (keys, values)), *strides,
        K=k, V=v, TYPES_K=(tl.bfloat16,) * k.planes, TYPES_V=(tl.bfloat16,) * v.planes,
        PARTS=query_parts(query.dtype, k), POWERS=3 if query.dtype is torch.float32 else 2, M=m,
        BT=s.tokens, BR=_RECENT, WK=max(16, power_of_2(depth if k.units else k.words)),
        WV=max(16 if k.fold else 8, power_of_2(v.words)),
        DEPTH=max(16, power_of_2(depth)), WIDTH=max(16, power_of_2(width)), WARPS=s.warps,
        num_warps=s.warps, num_stages=s.stages,
    )  # fmt: skip
    y = query.new_empty((batch, heads, new, width))
    direct(add_parts)[(rows, every)](
        sums, tops, totals, y, sinks, rows, new, shared, parts, width,
        EACH=_TURN, WIDTH=power_of_2(width), num_warps=4, num_stages=1,
    )  # fmt: skip
    return y


def rows_of_tile(k: TokenReading, v: TokenReading, rows: int) -> int:
    """The power of two that queries of a head are filled up to. Of keys per channel each costs more
    than the half of a tensor core's tile that may stay empty."""
    if k.fold:
        return max(power_of_2(rows), 8)
    tile = 8 // v.blocks if k.units else cdiv(16, min(k.blocks, v.blocks))
    return max(power_of_2(rows), tile)


def warps_for(query: Tensor, k: TokenReading, v: TokenReading, rows: int) -> int:
    """How many warps of a program may each have queries times the scales of keys per channel, in a
    processor's memory and registers; 0 for too many queries."""
    if not k.units:
        return 4
    channels, tokens = max(16, power_of_2(query.shape[-1])), k.columns * k.planes
    numbers = (
        power_of_2(query_parts(query.dtype, k)) * k.units * rows_of_tile(k, v, rows) * channels
    )
    words = channels * k.columns + tokens * power_of_2(v.words)
    blocks = channels * k.units + tokens * v.blocks
    memory = 2 * numbers + 2 * 4 * (words + 2 * blocks)  # of two steps, with scales and zero points
    fits = (n for n in (4, 2) if n * numbers <= _NUMBERS and n * memory <= _MEMORY)
    return next(fits, 0)


def of_whole_words(s: PartSettings, k: TokenReading, warps: int) -> PartSettings:
    """The same for keys per channel, whose steps have words of a channel."""
    tokens, warps = k.columns * k.planes, min(s.warps, warps)
    steps = cdiv(s.steps * s.tokens * s.warps, tokens * warps)
    return s._replace(tokens=tokens, steps=steps, warps=warps)


def query_parts(dtype: torch.dtype, k: TokenReading) -> int:
    """How many bfloat16 numbers one of a query is; of keys per channel, times a scale."""
    return max(PARTS[dtype], 2 if k.units else 1)


def strides_of(x: Tensor) -> list[int]:
    """Its strides, 0 of dimensions of one: those may be anything."""
    return [0 if n == 1 else each for n, each in zip(x.shape, x.stride(), strict=True)]


def both_readings(keys: Operand, values: Operand) -> tuple[TokenReading, TokenReading]:
    """How both are read: folded if both can be, else neither."""
    readings = [reading_of(each) for each in (keys, values)]
    folds = all(each is not None and each.fold for each in readings)
    k, v = (each if each is None or folds else without_fold(each) for each in readings)
    assert k is not None
    assert v is not None  # `_supports` asked
    return k, v


def reading_of(whole: Operand) -> TokenReading | None:
    """How keys or values are read; None where they are not."""
    of = channel_reading if len(whole.shape) == 5 else reading
    return of(whole.fmt, whole.size)


def _memory(whole: Operand) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Words of codes, stored scales, outer scales and zero points, in order. Raises ValueError
    where they do not fit the format."""
    stored = form(whole.fmt)
    codes = stored.checked_codes(whole.codes, whole.shape)
    parts = (whole.scale, whole.zero_point, whole.outer, codes.device, whole.more)
    stored.checked_parts(torch.Size(whole.shape), *parts)
    outer, zero = (x if x is None else x.contiguous() for x in (whole.outer, whole.zero_point))
    return codes.contiguous().view(torch.int32), whole.scale.contiguous(), outer, zero
