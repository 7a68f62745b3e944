# SPDX-License-Identifier: BSD-3-Clause
"""Scores of keys per channel: a word has codes of neighbouring tokens of one channel, and a scale
is that of a channel and a block of tokens. The legend is at the top of cached_attention.py.

Scores are sums over channels, so scales cannot meet them: each block has queries of its own, times
its scales in float32, in bfloat16 numbers which are rows of one operand. Tensor cores multiply it
with a plane's codes, channels by words, as they are. A warp takes a few words of each channel at a
time, those of one block or of several; then the queries of one block meet the words of the others,
too, and that is not kept. The scores of a plane are those of every `planes`-th token: joined, they
lie in the tokens' order, in which they meet values.

Legend
keys: int32 [heads of keys in all, chunks, channels, words]; scale: as stored, [.., blocks];
    zero: int32, likewise, or None; outer: of each channel of a chunk, or one
unit: the words of a step that are of one block, K.span_at_once of each channel, counted from a
    head's first; a step has K.units of them, and so K.columns words of a channel
"""

import triton
import triton.language as tl

from blockscale.kernels.cuda.device.numerics import bits_of, float_of, narrow, widen
from blockscale.kernels.cuda.matmul.tile import dot
from blockscale.kernels.cuda.token_reading import lowered, planes_of, step_of_stored


@triton.jit
def queries_of_channels(query, rows, depth, M: tl.constexpr, WK: tl.constexpr):
    """All of a head's queries [M, channels], zeros beyond."""
    row, channel = tl.arange(0, M), tl.arange(0, WK)
    mask = (row < rows)[:, None] & (channel < depth)[None, :]
    return tl.load(query + row[:, None] * depth + channel[None, :], mask=mask, other=0.0)


@triton.jit
def chunk_of(head, unit, tokens, depth, K: tl.constexpr):
    """The first channel of a unit's chunk, counted from those of the first head's."""
    chunks = tokens // (K.words * K.planes)
    return (head * chunks + unit // (K.words // K.span_at_once)) * depth


@triton.jit
def word_of(unit, K: tl.constexpr):
    """The first word of a unit in its chunk."""
    return unit % (K.words // K.span_at_once) * K.span_at_once


@triton.jit
def words_of_channels(keys, head, first, tokens, depth, K: tl.constexpr, WK: tl.constexpr):
    """Words [WARPS, channels, words] of the units from `first` [WARPS] on."""
    channel, column = tl.arange(0, WK), tl.arange(0, K.columns)
    unit = first[:, None] + (column // K.span_at_once)[None, :]
    row = chunk_of(head, unit, tokens, depth, K)[:, None, :] + channel[None, :, None]
    at = row * K.words + (word_of(unit, K) + (column % K.span_at_once)[None, :])[:, None, :]
    there = (unit < tokens // (K.span_at_once * K.planes))[:, None, :]
    return tl.load(keys + at, mask=there & (channel < depth)[None, :, None], other=0)


@triton.jit
def steps_of_channels(
    scale, outer, outer_stride, head, first, tokens, depth, K: tl.constexpr, WK: tl.constexpr
):  # fmt: skip
    """The steps of units' blocks, float32 [WARPS, units, channels]; 0 of those beyond."""
    channel = tl.arange(0, WK)
    unit = first[:, None] + tl.arange(0, K.units)[None, :]
    row = chunk_of(head, unit, tokens, depth, K)[:, :, None] + channel[None, None, :]
    there = (unit < tokens // (K.span_at_once * K.planes))[:, :, None]
    there = there & (channel < depth)[None, None, :]
    at = row * K.count + (word_of(unit, K) // K.span)[:, :, None]
    stored = tl.load(scale + at, mask=there, other=0)
    above = 0.0
    if K.spec.scale == "two_level":
        above = tl.load(outer + row * outer_stride, mask=there, other=0.0)
    return tl.where(there, step_of_stored(stored, above, K), 0.0)


@triton.jit
def zeros_of_channels(
    zero, head, first, tokens, depth, K: tl.constexpr, WK: tl.constexpr, WARPS: tl.constexpr
):  # fmt: skip
    """Zero points of words, bfloat16 [WARPS, channels, words]: views of what is loaded, so that
    threads load their own."""
    span: tl.constexpr = K.span_at_once
    channel = tl.arange(0, WK)
    unit = first[:, None] + tl.arange(0, K.units)[None, :]
    row = chunk_of(head, unit, tokens, depth, K)[:, None, :] + channel[None, :, None]
    there = (unit < tokens // (span * K.planes))[:, None, :] & (channel < depth)[None, :, None]
    at = row * K.count + (word_of(unit, K) // K.span)[:, None, :]
    less = tl.load(zero + at, mask=there, other=0).to(tl.float32)
    less = tl.broadcast_to(narrow(less, tl.bfloat16)[:, :, :, None], (WARPS, WK, K.units, span))
    return tl.reshape(less, (WARPS, WK, K.columns))


@triton.jit
def upper_half(rest):
    """float32 rounded to 8 bits, ties away from zero; a NaN may become -0, infinity stays."""
    return float_of((bits_of(rest) + 0x8000) & -65536)


@triton.jit
def scaled_queries(
    queries, step, K: tl.constexpr, PARTS: tl.constexpr, M: tl.constexpr, WK: tl.constexpr,
    WARPS: tl.constexpr,
):  # fmt: skip
    """Queries [M, channels] times steps [WARPS, units, channels] in PARTS bfloat16 numbers, the
    sum of which they are, as rows: [WARPS, 2 or 4 parts, units, M, channels], but for 3 dimensions.

    A step is reshaped, not indexed: so threads keep the neighbours that they loaded."""
    product = tl.reshape(step, (WARPS, K.units, 1, WK)) * widen(queries)[None, None, :, :]
    first = upper_half(product)
    rest = product - first
    second = upper_half(rest)
    parts = tl.join(first, second)
    if PARTS == 3:
        third = rest - second
        parts = tl.join(parts, tl.join(third, tl.zeros_like(third)))
        parts = tl.permute(parts, (0, 5, 4, 1, 2, 3))
    else:
        parts = tl.permute(parts, (0, 4, 1, 2, 3))
    rows: tl.constexpr = (4 if PARTS == 3 else 2) * K.units * M
    return tl.reshape(narrow(parts, tl.bfloat16), (WARPS, rows, WK))


@triton.jit
def join_halves(planes, HALF: tl.constexpr):
    """Twice HALF tensors [..] -> HALF [.., 2], the i-th with the one HALF after it."""
    pairs = ()
    for i in tl.static_range(HALF):
        pairs += (tl.join(planes[i], planes[i + HALF]),)  # type: ignore[assignment]
    return pairs


@triton.jit
def in_order(planes, COUNT: tl.constexpr):
    """COUNT planes of scores [WARPS, rows, words] -> [WARPS, rows, words, ..], as tokens lie."""
    if COUNT == 16:
        planes = join_halves(planes, 8)
    if COUNT >= 8:
        planes = join_halves(planes, 4)
    planes = join_halves(join_halves(planes, 2), 1)
    return planes[0]


@triton.jit
def channel_scores(
    queries, keys, scale, outer, zero, outer_stride, head, token, tokens, depth,
    K: tl.constexpr, TYPES_K: tl.constexpr, PARTS: tl.constexpr, M: tl.constexpr, BT: tl.constexpr,
    WK: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """Queries [M, channels] times keys of BT tokens from `token` [WARPS] on: [WARPS, M, BT]."""
    first = token // (K.span_at_once * K.planes)
    planes = planes_of(words_of_channels(keys, head, first, tokens, depth, K, WK), K, TYPES_K)
    if K.zero:
        less = zeros_of_channels(zero, head, first, tokens, depth, K, WK, WARPS)
        planes = lowered(planes, less, K)
    step = steps_of_channels(scale, outer, outer_stride, head, first, tokens, depth, K, WK)
    against = scaled_queries(queries, step, K, PARTS, M, WK, WARPS)
    parts: tl.constexpr = against.shape[1] // (K.units * M)
    count: tl.constexpr = K.planes
    columns: tl.constexpr = K.columns
    scores = ()
    for i in tl.static_range(count):
        plane = tl.zeros((WARPS, parts * K.units * M, columns), tl.float32)
        scores += (dot(against, planes[i], plane),)  # type: ignore[assignment]
    unit = tl.arange(0, K.units)
    same = (unit[:, None] == unit[None, :])[None, :, None, :, None]
    whole = in_order(scores, count)
    whole = tl.reshape(whole, (WARPS, parts, K.units, M, K.units, BT // K.units))
    whole = tl.sum(tl.where(same, tl.sum(whole, 1), 0.0), 1)
    return tl.reshape(whole, (WARPS, M, BT))
