# SPDX-License-Identifier: BSD-3-Clause
"""How attention reads tokens in codes: words of a tile become planes of bfloat16, exactly, and
stored scales the steps of blocks. The legend is at the top of cached_attention.py."""

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import triton
import triton.language as tl

from blockscale.core.block import WHOLE
from blockscale.core.element import ElementNumbers
from blockscale.core.parse import parse
from blockscale.kernels.cuda.device.element import decode, hardware
from blockscale.kernels.cuda.device.numerics import (
    FLT_MAX_BITS,
    INTERPRETED,
    NAN_BITS,
    constant,
    float_of,
    narrow,
    widen,
    widen_part,
)
from blockscale.kernels.cuda.device.scale import step_of
from blockscale.kernels.cuda.matmul import ptx
from blockscale.kernels.cuda.matmul.order import leading
from blockscale.kernels.cuda.matmul.reading import SIGNIFICAND, WORD, is_bfloat16, significand
from blockscale.kernels.cuda.relaunch import power_of_2
from blockscale.kernels.cuda.spec import Spec, spec

_COLUMNS, _TOKENS = 8, 64  # words of a channel that a warp takes at a time, and tokens, at most


@dataclass(frozen=True)
class TokenReading:
    """How tokens in codes are read. Frozen and hashable: Triton compiles once for each.

    planes: codes in a word; words: of a token; span: words of a block; blocks: of a token, and
    as a power of two; zero: whether blocks have zero points; decode, registers: PTX of two words
    fold: how scales multiply the codes themselves, bfloat16 exactly: "bytes" (e8m0), "codes" (a
        minifloat under an outer scale); "" if they meet sums
    lift: what folded values are too small by; decode_scale: PTX of four scales
    units, span_at_once: of keys per channel, whose tokens are channels of a chunk here: how many
        blocks have words in a step, and how many of a channel each; 0 of tokens
    """

    spec: Spec
    planes: int
    words: int
    span: int
    count: int
    blocks: int
    zero: bool
    decode: str
    registers: str
    fold: str = ""
    lift: float = 1.0
    decode_scale: str = ""
    units: int = 0
    span_at_once: int = 0

    @property
    def columns(self) -> int:
        """Words of a channel in a step."""
        return self.units * self.span_at_once


@cache
def reading(spelling: str, size: int) -> TokenReading | None:
    """How to read tokens of `size` codes; None where codes are no bfloat16 or do not lie in words,
    or blocks are of several tokens or no whole words."""
    fmt = parse(spelling)
    plain = fmt.offset is None and fmt.zero is None
    if not plain or fmt.block.flat or fmt.block.strided:
        return None
    *above, width = fmt.block.sizes_for(4)
    width = size if width == WHOLE or width > size else width
    if tuple(above) != (1, 1, 1) or fmt.bits not in (2, 4, 8):
        return None
    planes = WORD // fmt.bits
    if not is_bfloat16(fmt) or not size or size % planes or width % planes or size % width:
        return None
    numbers, count, span = spec(spelling), size // width, width // planes
    if fmt.asym and span & (span - 1):  # zero points are views of what is loaded
        return None
    r = TokenReading(
        numbers, planes, size // planes, span, count, power_of_2(count), fmt.asym,
        ptx.decode_words(numbers.element), ptx.constraints(planes, 2),
    )  # fmt: skip
    fold = "" if fmt.asym else _fold(numbers, span)
    return replace(r, **_folded(numbers, fold)) if fold else r


@cache
def channel_reading(spelling: str, chunk: int) -> TokenReading | None:
    """How to read keys per channel, in chunks of so many tokens; None as of `reading`, and where
    the words of a block are no power of two."""
    r = reading(spelling, chunk)
    if r is None or r.span & (r.span - 1):
        return None
    columns = min(_COLUMNS, _TOKENS // r.planes)
    span = min(r.span, columns)
    return replace(without_fold(r), units=columns // span, span_at_once=span)


@cache
def without_fold(of: TokenReading) -> TokenReading:
    """The same, whose scales meet sums."""
    return replace(of, decode=ptx.decode_words(of.spec.element), decode_scale="", fold="", lift=1.0)


_DOWN = 64  # how far values times e8m0 are lowered, so that neither they nor scales overflow


def _fold(numbers: Spec, span: int) -> str:
    """As TokenReading says; for codes of fewer than 8 bits, which are not decoded by the GPU."""
    e, inner = numbers.element, numbers.inner
    if e.bits >= WORD // 4 or span & (span - 1):
        return ""
    if numbers.scale == "e8m0" and not numbers.fraction_bits and _gap(e):
        return "bytes"
    if numbers.scale == "two_level" and inner is not None and inner.family == "minifloat":
        small = significand(e) + significand(inner) <= SIGNIFICAND
        return "codes" if small and inner.bits == WORD // 4 else ""
    return ""


def _gap(e: ElementNumbers) -> int:
    """The power of two that decoding leaves to the scale."""
    return 127 - e.bias if e.family == "minifloat" else 0


def _folded(numbers: Spec, fold: str) -> dict[str, Any]:
    """What a TokenReading of `fold` has. Scales are lowered: with the gap they would overflow."""
    gap = _gap(numbers.element)
    if fold == "bytes":
        down, scale = _DOWN, ptx.decode_exponents_below(gap - _DOWN)
    else:
        assert numbers.inner is not None
        down = math.frexp(numbers.inner.high)[1] if gap else 0
        scale = ptx.decode_bytes(numbers.inner, gap - down)
    words = ptx.decode_words(numbers.element, 0 if gap else None)
    return {"decode": words, "decode_scale": scale, "fold": fold, "lift": 2.0**down}


@triton.jit
def planes_of(word, R: tl.constexpr, DTYPES: tl.constexpr):
    """Words [.., ..] -> for each plane their values, bfloat16 [.., ..]."""
    if INTERPRETED:
        planes = ()
        count: tl.constexpr = R.planes
        element: tl.constexpr = R.spec.element
        for i in tl.static_range(count):
            value = narrow(decode(word >> (i * element.bits), element), tl.bfloat16)
            planes += (value,)  # type: ignore[assignment]
    else:
        planes = tl.inline_asm_elementwise(
            R.decode, R.registers, [word], dtype=DTYPES, is_pure=True, pack=2
        )
    return planes


@triton.jit
def stored_of_words(
    part, token, there, R: tl.constexpr, WORDS: tl.constexpr, LAST: tl.constexpr
):  # fmt: skip
    """A part of the blocks of tokens [WARPS, BT], as it is stored: [WARPS, BT, blocks], or with
    tokens LAST [WARPS, blocks, BT]."""
    block = tl.arange(0, WORDS // R.span)
    if LAST:
        exists = there[:, None, :] & (block < R.count)[None, :, None]
        at = token[:, None, :] * R.count + block[None, :, None]
    else:
        exists = there[:, :, None] & (block < R.count)[None, None, :]
        at = token[:, :, None] * R.count + block[None, None, :]
    return tl.load(part + at, mask=exists, other=0)


@triton.jit
def over_words(by, R: tl.constexpr, WORDS: tl.constexpr, LAST: tl.constexpr):
    """What blocks have, for each of their words: views of what was loaded, so that threads load
    their own."""
    count: tl.constexpr = WORDS // R.span
    if LAST:
        by = tl.broadcast_to(by[:, :, None, :], (by.shape[0], count, R.span, by.shape[2]))
        by = tl.reshape(by, (by.shape[0], WORDS, by.shape[3]))
    else:
        by = tl.broadcast_to(by[:, :, :, None], (by.shape[0], by.shape[1], count, R.span))
        by = tl.reshape(by, (by.shape[0], by.shape[1], WORDS))
    return by


@triton.jit
def zeros_of_words(zero, token, there, R: tl.constexpr, WORDS: tl.constexpr, LAST: tl.constexpr):
    """Zero points of the words of tokens [WARPS, BT], bfloat16 [WARPS, BT, words], or with tokens
    LAST [WARPS, words, BT]."""
    stored = stored_of_words(zero, token, there, R, WORDS, LAST)
    return over_words(narrow(stored.to(tl.float32), tl.bfloat16), R, WORDS, LAST)


@triton.jit
def lowered(planes, zero, R: tl.constexpr):
    """Planes less zero points, bfloat16 all: whole numbers below 256, so exact."""
    count: tl.constexpr = R.planes
    lower = ()
    for i in tl.static_range(count):
        if INTERPRETED:
            plane = narrow(widen(planes[i]) - widen(zero), tl.bfloat16)
        else:
            plane = tl.inline_asm_elementwise(
                "sub.rn.bf16x2 $0, $1, $2;", "=r,r,r", [planes[i], zero], dtype=tl.bfloat16,
                is_pure=True, pack=2,
            )  # fmt: skip
        lower += (plane,)  # type: ignore[assignment]
    return lower


@triton.jit
def steps_of(scale, outer, outer_stride, token, there, R: tl.constexpr):
    """The steps of blocks, float32 [WARPS, blocks, BT], of tokens [WARPS, BT]; 0 of blocks beyond.

    Threads compute them again, so few instructions do: a product of two levels may become 0."""
    numbers: tl.constexpr = R.spec
    block = tl.arange(0, R.blocks)
    exists = there[:, None, :] & (block < R.count)[None, :, None]
    at = token[:, None, :] * R.count + block[None, :, None]
    stored = tl.load(scale + at, mask=exists, other=0)
    above = 0.0
    if numbers.scale == "two_level":
        above = tl.load(outer + token * outer_stride, mask=there, other=0.0)[:, None, :]
    return tl.where(exists, step_of_stored(stored, above, R), 0.0)


@triton.jit
def step_of_stored(stored, above, R: tl.constexpr):
    """The steps of stored scales, float32 [..]. above: float32, the scales of two-level ones."""
    numbers: tl.constexpr = R.spec
    if numbers.scale == "e8m0" and numbers.fraction_bits == 0:
        bits = tl.maximum(stored.to(tl.int32) << 23, 0x00400000)
        step = float_of(tl.where(stored == 255, NAN_BITS, bits))
    elif numbers.scale == "e8m0":
        step = step_of(stored.to(tl.int32), 1.0, numbers)
    elif numbers.scale == "two_level":
        inner: tl.constexpr = numbers.inner
        kind: tl.constexpr = hardware(inner, "nearest_even")
        if kind is not None:
            value = stored.to(kind, bitcast=True).to(tl.float32)
        else:
            value = decode(stored.to(tl.int32), inner)
        most = constant(value, FLT_MAX_BITS)
        step = tl.minimum(value * above, most, propagate_nan=tl.PropagateNan.ALL)
        step = tl.maximum(step, 0.0 - most, propagate_nan=tl.PropagateNan.ALL)
    else:
        step = widen_part(stored)
    return step


@triton.jit
def query_planes(
    query, rows, depth, K: tl.constexpr, PARTS: tl.constexpr, M: tl.constexpr, WK: tl.constexpr,
    WARPS: tl.constexpr,
):  # fmt: skip
    """What planes of keys meet: bfloat16 [WARPS, blocks * M, words], the parts of each in turn."""
    place = tl.arange(0, K.blocks * M)
    word = tl.arange(0, WK)
    row, block = place % M, place // M
    mine = block[:, None] == (word // K.span)[None, :]
    mask = mine & (row < rows)[:, None] & (word < K.words)[None, :]
    planes = ()
    count: tl.constexpr = K.planes
    for i in tl.static_range(count):
        at = query + row[:, None] * depth + (word * count + i)[None, :]
        rest = widen(tl.load(at, mask=mask, other=0.0))
        for part in tl.static_range(PARTS):
            head, rest = leading(rest, part == 0)
            planes += (tl.broadcast_to(head[None, :, :], (WARPS, K.blocks * M, WK)),)  # type: ignore[assignment]
    return planes
