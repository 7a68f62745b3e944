# SPDX-License-Identifier: BSD-3-Clause
"""What a part of a cache's tokens sums up to, in codes or in recent floats: largest scores, powers,
sums of values. The legend is at the top of cached_attention.py."""

import triton
import triton.language as tl

from blockscale.kernels.cuda.channel_keys import channel_scores, queries_of_channels
from blockscale.kernels.cuda.device.element import decode
from blockscale.kernels.cuda.device.numerics import INTERPRETED, narrow, widen
from blockscale.kernels.cuda.device.scale import step_of
from blockscale.kernels.cuda.matmul.order import leading
from blockscale.kernels.cuda.matmul.tile import dot
from blockscale.kernels.cuda.token_reading import (
    lowered,
    over_words,
    planes_of,
    query_planes,
    steps_of,
    stored_of_words,
    zeros_of_words,
)


@triton.jit
def add_biases(scores, biases, bias_token, row, token, there, rows, M: tl.constexpr):
    """Scores [.., M, tokens] with what is added to them, each row from `row` [M] on; -inf of tokens
    that are not there."""
    if biases is not None:
        mask = there[:, None, :] & (tl.arange(0, M) < rows)[None, :, None]
        at = biases + row[None, :, None] + token[:, None, :] * bias_token
        scores += tl.load(at, mask=mask, other=0.0)
    return tl.where(there[:, None, :], scores, float("-inf"))


@triton.jit
def finite(top):
    """The largest score, or 0 of nothing."""
    return tl.where(top == float("-inf"), 0.0, top)


@triton.jit
def scores_of(
    against, keys, scale, outer, zero, outer_stride, head, start, at, there, tokens, depth,
    K: tl.constexpr, TYPES_K: tl.constexpr, PARTS: tl.constexpr, M: tl.constexpr, BT: tl.constexpr,
    WK: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """Queries times keys of the tokens `at` [WARPS, BT] from `start` on, float32 [WARPS, M, BT]."""
    if K.units:
        first = start + tl.arange(0, WARPS) * BT
        scores = channel_scores(
            against, keys, scale, outer, zero, outer_stride, head, first, tokens, depth, K,
            TYPES_K, PARTS, M, BT, WK, WARPS,
        )  # fmt: skip
    else:
        scores = token_scores(
            against, keys, scale, outer, zero, outer_stride, at, there, K, TYPES_K, PARTS, M, BT,
            WK, WARPS,
        )  # fmt: skip
    return scores


@triton.jit
def token_scores(
    against, keys, scale, outer, zero, outer_stride, at, there, K: tl.constexpr,
    TYPES_K: tl.constexpr, PARTS: tl.constexpr, M: tl.constexpr, BT: tl.constexpr,
    WK: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """The same of keys by token."""
    rk = tl.arange(0, WK)[None, :, None]
    mask = there[:, None, :] & (rk < K.words)
    word = tl.load(keys + at[:, None, :] * K.words + rk, mask=mask, other=0)
    by = steps_of(scale, outer, outer_stride, at, there, K)
    planes = planes_of(word, K, TYPES_K)
    if K.zero:
        planes = lowered(planes, zeros_of_words(zero, at, there, K, WK, True), K)
    scores = tl.zeros((WARPS, K.blocks * M, BT), tl.float32)
    count: tl.constexpr = K.planes
    for i in tl.static_range(count):
        for p in tl.static_range(PARTS):
            scores = dot(against[i * PARTS + p], planes[i], scores)
    if K.blocks > 1:
        scores = tl.sum(tl.reshape(scores, (WARPS, K.blocks, M, BT)) * by[:, :, None, :], 1)
    else:
        scores *= by
    return scores


@triton.jit
def planes_of_values(
    values, zero, at, there, V: tl.constexpr, TYPES_V: tl.constexpr, WV: tl.constexpr
):  # fmt: skip
    """Planes [WARPS, BT, words] of the values of tokens [WARPS, BT]."""
    rv = tl.arange(0, WV)[None, None, :]
    mask = there[:, :, None] & (rv < V.words)
    word = tl.load(values + at[:, :, None] * V.words + rv, mask=mask, other=0)
    planes = planes_of(word, V, TYPES_V)
    if V.zero:
        planes = lowered(planes, zeros_of_words(zero, at, there, V, WV, False), V)
    return planes


@triton.jit
def no_sums(V: tl.constexpr, WARPS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Sums of each plane, [WARPS, HEIGHT, WIDTH], of nothing yet."""
    acc = ()
    count: tl.constexpr = V.planes
    for _ in tl.static_range(count):
        acc += (tl.zeros((WARPS, HEIGHT, WIDTH), tl.float32),)  # type: ignore[assignment]
    return acc


@triton.jit
def by_rows(less, V: tl.constexpr, M: tl.constexpr, WARPS: tl.constexpr):
    """[WARPS, M] -> the same for each block's row, [WARPS, blocks * M, 1]."""
    wide = tl.broadcast_to(less[:, None, :], (WARPS, V.blocks, M))
    return tl.reshape(wide, (WARPS, V.blocks * M, 1))


@triton.jit
def more_values(
    acc, power, less, planes, by, V: tl.constexpr, POWERS: tl.constexpr, M: tl.constexpr,
    WARPS: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """Sums of each plane times `less`, and with powers [WARPS, M, BT] times values added."""
    count: tl.constexpr = V.planes
    rest = tl.reshape(power[:, None, :, :] * by[:, :, None, :], (WARPS, V.blocks * M, BT))
    now = ()
    for i in tl.static_range(count):
        now += (acc[i] * less,)  # type: ignore[assignment]
    for _ in tl.static_range(POWERS):
        first = narrow(rest, tl.bfloat16)
        rest = rest - widen(first)
        more = ()
        for i in tl.static_range(count):
            more += (dot(first, planes[i], now[i]),)  # type: ignore[assignment]
        now = more
    return now


@triton.jit
def store_planes(acc, less, sums, rows, width, V: tl.constexpr, M: tl.constexpr, WV: tl.constexpr):
    """Add up the warps' sums times `less`, and keep of each row the features of its block."""
    word, row = tl.arange(0, WV), tl.arange(0, V.blocks * M)
    own = (word // V.span)[None, :] == (row // M)[:, None]
    own = own & (row % M < rows)[:, None] & (word < V.words)[None, :]
    count: tl.constexpr = V.planes
    for i in tl.static_range(count):
        at = sums + (row % M)[:, None] * width + (word * count + i)[None, :]
        tl.store(at, tl.sum(acc[i] * less, 0), mask=own)


@triton.jit
def powers_of(scores, top, total):
    """Scores [WARPS, M, tokens] -> their powers; what sums so far are worth beside them, the
    largest score and the sum of powers, [WARPS, M] each."""
    highest = tl.maximum(top, tl.max(scores, 2))
    power = tl.exp(scores - finite(highest)[:, :, None])
    less = tl.exp(top - finite(highest))
    return power, less, highest, total * less + tl.sum(power, 2)


@triton.jit
def of_codes(
    query, keys, key_scale, key_outer, key_zero, values, value_scale, value_outer, value_zero,
    biases, sums, head, start, tokens, rows, depth, width, scaling, key_outer_stride,
    value_outer_stride, above, bias_token, steps,
    K: tl.constexpr, V: tl.constexpr, TYPES_K: tl.constexpr, TYPES_V: tl.constexpr,
    PARTS: tl.constexpr, POWERS: tl.constexpr, M: tl.constexpr, BT: tl.constexpr,
    WK: tl.constexpr, WV: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """Largest scores and sums of powers [M] of a part in codes, whose warps meet at the end."""
    total = tl.zeros((WARPS, M), tl.float32)
    top = total + float("-inf")
    if K.units:
        against = queries_of_channels(query, rows, depth, M, WK)
    else:
        against = query_planes(query, rows, depth, K, PARTS, M, WK, WARPS)
    acc = no_sums(V, WARPS, V.blocks * M, WV)
    mine = tl.arange(0, WARPS)[:, None] * BT + tl.arange(0, BT)[None, :]
    for step in range(steps):
        token = start + step * (WARPS * BT) + mine
        there = token < tokens
        at = head * tokens + token
        scores = scaling * scores_of(
            against, keys, key_scale, key_outer, key_zero, key_outer_stride, head,
            start + step * (WARPS * BT), at, there, tokens, depth, K, TYPES_K, PARTS, M, BT, WK,
            WARPS,
        )  # fmt: skip
        scores = add_biases(scores, biases, bias_token, above, token, there, rows, M)
        power, less, top, total = powers_of(scores, top, total)
        planes = planes_of_values(values, value_zero, at, there, V, TYPES_V, WV)
        less = by_rows(less, V, M, WARPS)
        by = steps_of(value_scale, value_outer, value_outer_stride, at, there, V)
        acc = more_values(acc, power, less, planes, by, V, POWERS, M, WARPS, BT)
    highest = tl.max(top, 0)
    less = tl.exp(top - finite(highest)[None, :])
    store_planes(acc, by_rows(less, V, M, WARPS), sums, rows, width, V, M, WV)
    return highest, tl.sum(total * less, 0)


@triton.jit
def of_floats(
    query, recent_keys, recent_values, biases, sums, head, start, tokens, recent, rows, new, depth,
    width, scaling, above, bias_token,
    M: tl.constexpr, BR: tl.constexpr, DEPTH: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The same of recent tokens, in float32."""
    m = tl.arange(0, M)
    token = start + tl.arange(0, BR)
    there = token < recent
    rd, rw = tl.arange(0, DEPTH), tl.arange(0, WIDTH)
    at = head * recent + token
    key = widen(tl.load(
        recent_keys + at[:, None] * depth + rd[None, :],
        mask=there[:, None] & (rd < depth)[None, :], other=0.0,
    ))  # fmt: skip
    queries = widen(tl.load(
        query + m[None, :] * depth + rd[:, None],
        mask=(m < rows)[None, :] & (rd < depth)[:, None], other=0.0,
    ))  # fmt: skip
    scores = tl.dot(key, queries, input_precision="ieee") * scaling
    place = (tokens + token)[None, :]
    scores = tl.reshape(tl.trans(scores), (1, M, BR))
    scores = add_biases(scores, biases, bias_token, above, place, there[None, :], rows, M)
    scores = tl.trans(tl.reshape(scores, (M, BR)))
    if biases is None:
        visible = token[:, None] <= (recent - new + m % new)[None, :]
        scores = tl.where(visible, scores, float("-inf"))
    top = tl.max(scores, 0)
    power = tl.exp(scores - finite(top)[None, :])
    value = widen(tl.load(
        recent_values + at[:, None] * width + rw[None, :],
        mask=there[:, None] & (rw < width)[None, :], other=0.0,
    ))  # fmt: skip
    y = tl.dot(tl.trans(power), value, input_precision="ieee")
    mask = (m < rows)[:, None] & (rw < width)[None, :]
    tl.store(sums + m[:, None] * width + rw[None, :], y, mask=mask)
    return top, tl.sum(power, 0)


# Tokens whose scales multiply their codes (`fold` of a TokenReading), exactly, in registers: tokens
# are the rows of products, queries their columns.


@triton.jit
def folded_scales(stored, R: tl.constexpr):
    """Stored scales -> what codes are multiplied by, bfloat16, divided by `lift`."""
    if INTERPRETED:
        if R.fold == "bytes":
            by = step_of(stored.to(tl.int32), 1.0, R.spec)
            by = tl.where(stored > 192, float("nan"), by)
        else:
            by = decode(stored.to(tl.int32), R.spec.inner)
        by = narrow(by * (1 / R.lift), tl.bfloat16)
    else:
        by = tl.inline_asm_elementwise(
            R.decode_scale, "=r,=r,r", [stored], dtype=tl.bfloat16, is_pure=True, pack=4
        )
    return by


@triton.jit
def scales_of_words(scale, token, there, R: tl.constexpr, WORDS: tl.constexpr, LAST: tl.constexpr):
    """What the words of tokens [WARPS, BT] are multiplied by, bfloat16 [WARPS, BT, words], or with
    tokens LAST [WARPS, words, BT]."""
    stored = stored_of_words(scale, token, there, R, WORDS, LAST)
    return over_words(folded_scales(stored, R), R, WORDS, LAST)


@triton.jit
def scaled(plane, by):
    """The products of bfloat16, exact here, two at a time."""
    if INTERPRETED:
        product = narrow(widen(plane) * widen(by), tl.bfloat16)
    else:
        product = tl.inline_asm_elementwise(
            "mul.rn.bf16x2 $0, $1, $2;", "=r,r,r", [plane, by], dtype=tl.bfloat16, is_pure=True,
            pack=2,
        )  # fmt: skip
    return product


@triton.jit
def outer_of(outer, outer_stride, token, there, R: tl.constexpr):
    """What sums of folded values are multiplied by, float32 [WARPS, BT]."""
    if R.fold == "codes":
        by = tl.load(outer + token * outer_stride, mask=there, other=0.0) * R.lift
    else:
        by = tl.zeros_like(token).to(tl.float32) + R.lift
    return by


@triton.jit
def query_planes_across(
    query, rows, depth, K: tl.constexpr, PARTS: tl.constexpr, M: tl.constexpr, WK: tl.constexpr,
    WARPS: tl.constexpr,
):  # fmt: skip
    """What planes of folded keys meet: bfloat16 [WARPS, words, M], the parts of each in turn."""
    row, word = tl.arange(0, M), tl.arange(0, WK)
    mask = (row < rows)[None, :] & (word < K.words)[:, None]
    planes = ()
    count: tl.constexpr = K.planes
    for i in tl.static_range(count):
        at = query + row[None, :] * depth + (word * count + i)[:, None]
        rest = widen(tl.load(at, mask=mask, other=0.0))
        for part in tl.static_range(PARTS):
            head, rest = leading(rest, part == 0)
            planes += (tl.broadcast_to(head[None, :, :], (WARPS, WK, M)),)  # type: ignore[assignment]
    return planes


@triton.jit
def folded_scores(
    word, scale, outer, outer_stride, against, at, there, K: tl.constexpr, TYPES_K: tl.constexpr,
    PARTS: tl.constexpr, M: tl.constexpr, BT: tl.constexpr, WK: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """As `scores_of`, float32 [WARPS, M, BT], of keys times their scales."""
    planes = planes_of(word, K, TYPES_K)
    by = scales_of_words(scale, at, there, K, WK, False)
    scores = tl.zeros((WARPS, BT, M), tl.float32)
    count: tl.constexpr = K.planes
    for i in tl.static_range(count):
        for p in tl.static_range(PARTS):
            scores = dot(scaled(planes[i], by), against[i * PARTS + p], scores)
    scores *= outer_of(outer, outer_stride, at, there, K)[:, :, None]
    return tl.permute(scores, (0, 2, 1))


@triton.jit
def folded_values(acc, power, less, planes, by, V: tl.constexpr, POWERS: tl.constexpr):
    """As `more_values`, of values times their scales: sums [WARPS, words, M]."""
    count: tl.constexpr = V.planes
    now = ()
    for i in tl.static_range(count):
        now += (acc[i] * less[:, None, :],)  # type: ignore[assignment]
    rest = tl.permute(power, (0, 2, 1))
    for _ in tl.static_range(POWERS):
        first = narrow(rest, tl.bfloat16)
        rest = rest - widen(first)
        more = ()
        for i in tl.static_range(count):
            more += (dot(scaled(planes[i], by), first, now[i]),)  # type: ignore[assignment]
        now = more
    return now


@triton.jit
def store_words(acc, less, sums, rows, width, V: tl.constexpr, M: tl.constexpr, WV: tl.constexpr):
    """As `store_planes`, of sums [WARPS, words, M] that are of one block."""
    word, m = tl.arange(0, WV), tl.arange(0, M)
    mask = (word < V.words)[:, None] & (m < rows)[None, :]
    count: tl.constexpr = V.planes
    for i in tl.static_range(count):
        at = sums + m[None, :] * width + (word * count + i)[:, None]
        tl.store(at, tl.sum(acc[i] * less[:, None, :], 0), mask=mask)


@triton.jit
def of_folded(
    query, keys, key_scale, key_outer, key_zero, values, value_scale, value_outer, value_zero,  # noqa: ARG001 - has none
    biases, sums, head, start, tokens, rows, depth, width, scaling, key_outer_stride,
    value_outer_stride, above, bias_token, steps,
    K: tl.constexpr, V: tl.constexpr, TYPES_K: tl.constexpr, TYPES_V: tl.constexpr,
    PARTS: tl.constexpr, POWERS: tl.constexpr, M: tl.constexpr, BT: tl.constexpr,
    WK: tl.constexpr, WV: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """As `of_codes` where scales fold: tokens are the rows of products, queries their columns."""
    total = tl.zeros((WARPS, M), tl.float32)
    top = total + float("-inf")
    against = query_planes_across(query, rows, depth, K, PARTS, M, WK, WARPS)
    acc = no_sums(V, WARPS, WV, M)
    mine = tl.arange(0, WARPS)[:, None] * BT + tl.arange(0, BT)[None, :]
    rk, rv = tl.arange(0, WK), tl.arange(0, WV)
    for step in range(steps):
        token = start + step * (WARPS * BT) + mine
        there = token < tokens
        at = head * tokens + token
        mask = there[:, :, None] & (rk < K.words)[None, None, :]
        word = tl.load(keys + at[:, :, None] * K.words + rk[None, None, :], mask=mask, other=0)
        scores = scaling * folded_scores(
            word, key_scale, key_outer, key_outer_stride, against, at, there, K, TYPES_K, PARTS, M,
            BT, WK, WARPS,
        )  # fmt: skip
        scores = add_biases(scores, biases, bias_token, above, token, there, rows, M)
        power, less, top, total = powers_of(scores, top, total)
        mask = there[:, None, :] & (rv < V.words)[None, :, None]
        word = tl.load(values + at[:, None, :] * V.words + rv[None, :, None], mask=mask, other=0)
        planes = planes_of(word, V, TYPES_V)
        by = scales_of_words(value_scale, at, there, V, WV, True)
        power *= outer_of(value_outer, value_outer_stride, at, there, V)[:, None, :]
        acc = folded_values(acc, power, less, planes, by, V, POWERS)
    highest = tl.max(top, 0)
    less = tl.exp(top - finite(highest)[None, :])
    store_words(acc, less, sums, rows, width, V, M, WV)
    return highest, tl.sum(total * less, 0)
