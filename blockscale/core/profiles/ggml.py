# SPDX-License-Identifier: BSD-3-Clause
"""How ggml chooses scales and codes: its plain formats, its k-quants, and their searches."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.profiles.codes import first_of_equals
from blockscale.core.profiles.encoders import (
    SUPER,
    EncodedBlocks,
    by_super_block,
    first_largest,
    half,
    in_blocks,
    nearest_int,
    ordered_sum,
    put_back,
    square_root,
)
from blockscale.core.reference import QParams, widen
from blockscale.core.rounding import nearest_away, nearest_even

# ggml's searches for the scale of a few numbers (ggml-quants.c, commit d99724f2).
#
# Each takes numbers x [n, blocks] float32, the n of one block along dimension 0, in the order in
# which ggml adds them, and gives scales [blocks] and codes [n, blocks].

NOTHING = 1e-15  # GROUP_MAX_EPS: a block with nothing above it counts as zeros


class Trials(NamedTuple):
    """The steps that are tried for a scale and a minimum: `first` + `delta` * k more of them.

    levels: the largest code; last: k is 0 ... last; absolute: errors are not squared
    """

    levels: int
    first: float
    delta: float
    last: int
    absolute: bool


def symmetric(x: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """make_qx_quants with weights x^2: the best of 19 scales; codes -levels ... levels - 1."""
    largest, size = first_largest(x)
    nothing = size < NOTHING
    top = torch.where(nothing, 1.0, largest)
    weights = x * x
    weighted = weights * x

    def trial(inverse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        codes = nearest_int(inverse * x).clamp(-levels, levels - 1).float()
        product, square = ordered_sum(torch.stack([weighted * codes, weights * codes * codes], 1))
        return codes, product, square

    codes, product, square = trial(torch.full_like(top, -levels) / top)
    scale = torch.where(square != 0, product / square, 0.0)
    best = scale * product
    tenth = torch.tensor(0.1, dtype=torch.float32, device=x.device)
    for k in (*range(-9, 0), *range(1, 10)):
        more = tenth * k + levels
        others, product, square = trial(-more / top)
        better = (square > 0) & (product * product > best * square)
        codes = torch.where(better, others, codes)
        scale = torch.where(better, product / square, scale)
        best = torch.where(better, scale * product, best)
    return torch.where(nothing, 0.0, scale), torch.where(nothing, -levels, codes)


def refine(x: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """make_q3_quants: one scale, then codes changed one after another, five times over."""
    largest, size = first_largest(x)
    nothing = size < NOTHING
    weights = x * x
    weighted = weights * x
    top = torch.where(nothing, 1.0, largest)
    codes = nearest_int((torch.full_like(top, -levels) / top) * x)
    codes = codes.clamp(-levels, levels - 1).float()
    product, square = ordered_sum(weighted * codes), ordered_sum(weights * codes * codes)
    for _ in range(5):
        for i in range(x.shape[0]):
            old, w = codes[i], weights[i]
            p = product - weighted[i] * old
            s = square - w * old * old
            new = nearest_int(x[i] * s / p).clamp(-levels, levels - 1).float()
            more_p, more_s = p + weighted[i] * new, s + w * new * new
            better = (p > 0) & (new != old) & (more_s > 0)
            better &= more_p * more_p * square > product * product * more_s
            codes[i] = torch.where(better, new, old)
            product = torch.where(better, more_p, product)
            square = torch.where(better, more_s, square)
    scale = torch.where(square > 0, product / square, 0.0)
    return torch.where(nothing, 0.0, scale), torch.where(nothing, -levels, codes)


class Range(NamedTuple):
    """The state of a search for scale and minimum, each [blocks]; codes [n, blocks]."""

    scale: Tensor
    low: Tensor
    codes: Tensor
    error: Tensor


def search_with_minimum(
    x: Tensor, weights: Tensor, trials: Trials
) -> tuple[Tensor, Tensor, Tensor]:
    """make_qkx2_quants: scale, -minimum (at least 0) and codes 0 ... levels.

    Each better trial moves the minimum from which the next one begins, as in ggml.
    """
    total_w, total_x = ordered_sum(weights), ordered_sum(weights * x)
    low, high = x.amin(0).clamp(max=0.0), x.amax(0)
    constant = high == low
    extent = torch.where(constant, 1.0, high - low)
    inverse = torch.full_like(extent, trials.levels) / extent
    codes = nearest_int(inverse * (x - low)).clamp(0, trials.levels).float()
    now = Range(inverse.reciprocal(), low, codes, torch.zeros_like(low))
    now = now._replace(error=_error(x, weights, now, trials))
    delta = torch.full((), trials.delta, dtype=x.dtype, device=x.device)
    for k in range(trials.last + 1):
        steps = delta * k + trials.first + trials.levels
        codes = nearest_int((steps / (high - now.low)) * (x - now.low))
        codes = codes.clamp(0, trials.levels).float()
        new = _fit(x, weights, codes, (total_w, total_x))
        new = new._replace(error=_error(x, weights, new, trials))
        better = new.error < now.error  # NaN, where nothing can be fitted, is not
        now = Range(*(torch.where(better, a, b) for a, b in zip(new, now, strict=True)))
    return (
        torch.where(constant, 0.0, now.scale),
        torch.where(constant, -low, -now.low),
        torch.where(constant, 0.0, now.codes),
    )


def _fit(x: Tensor, weights: Tensor, codes: Tensor, totals: tuple[Tensor, Tensor]) -> Range:
    """Weighted least squares of x = scale * code + minimum, of which the minimum is at most 0."""
    total_w, total_x = totals
    weighted = weights * codes
    l1, l2, lx = ordered_sum(torch.stack([weighted, weighted * codes, weighted * x], 1))
    d = total_w * l2 - l1 * l1
    scale = (total_w * lx - total_x * l1) / d
    low = (l2 * total_x - l1 * lx) / d
    above = low > 0
    scale, low = torch.where(above, lx / l2, scale), torch.where(above, 0.0, low)
    return Range(torch.where(d > 0, scale, torch.nan), low, codes, low)


def _error(x: Tensor, weights: Tensor, fit: Range, trials: Trials) -> Tensor:
    off = fit.scale * fit.codes + fit.low - x
    return ordered_sum(weights * (off.abs() if trials.absolute else off * off))


# ggml's K types: 256 numbers whose scales and minimums are codes of 4, 6 or 8 bits themselves.
#
# As `ggml_quantize_chunk` does without an importance matrix (ggml-quants.c, commit d99724f2).


@dataclass(frozen=True)
class KType:
    """An encoder of x [..., n], n a multiple of 256: the format says the block of a scale.

    trials: the search for scales and minimums; None where there are no minimums
    levels: of a scale's own code, which the largest scale gets
    """

    levels: int
    trials: Trials | None = None

    def __call__(self, x: Tensor, fmt: Format) -> tuple[Tensor, QParams]:
        return by_super_block(x, fmt, self._encode)

    def _encode(self, x: Tensor, fmt: Format) -> EncodedBlocks:
        """x [n, blocks] float32, n numbers in each of 256 / n blocks in a row"""
        if self.trials is None:
            return _symmetric(x, fmt, self)
        return _with_minimums(x, self.trials, self)


def _with_minimums(x: Tensor, trials: Trials, k_type: KType) -> EncodedBlocks:
    each = SUPER // x.shape[0]
    scales, minimums, codes = search_with_minimum(x, _weights(x, trials), trials)
    scale_codes, d = _unsigned(scales.reshape(-1, each), k_type.levels)
    minimum_codes, dmin = _unsigned(minimums.reshape(-1, each), k_type.levels)
    if k_type.levels == 15:  # Q2_K keeps both in a byte, without a limit to either
        byte = (scale_codes & 255) | (minimum_codes << 4 & 255)
        scale_codes, minimum_codes = byte & 15, byte >> 4
    else:
        scale_codes, minimum_codes = ((c & 255).clamp(max=63) for c in (scale_codes, minimum_codes))
    step = (d.float() * scale_codes.float()).flatten()
    low = (dmin.float() * minimum_codes.float()).flatten()
    again = nearest_int((x + low) / step).clamp(0, trials.levels)
    return EncodedBlocks(
        torch.where(step == 0, codes.int(), again), scale_codes, d, minimum_codes, -dmin
    )


def _weights(x: Tensor, trials: Trials) -> Tensor:
    if trials.absolute:
        return x.abs()
    count = torch.full((), x.shape[0], dtype=x.dtype, device=x.device)
    return square_root(ordered_sum(x * x) / count) + x.abs()


def _unsigned(numbers: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """Numbers [blocks, each] -> codes int32, of which the largest gets `levels`, and the step."""
    top = numbers.amax(-1, keepdim=True).clamp(min=0.0) + 0.0  # -0 is 0
    limit = torch.full_like(top, levels)
    inverse = torch.where(top > 0, limit / top, 0.0)
    return nearest_int(inverse * numbers), half(top / limit)


def _symmetric(x: Tensor, fmt: Format, k_type: KType) -> EncodedBlocks:
    each, levels = SUPER // x.shape[0], 2 ** (fmt.bits - 1)
    find = refine if fmt.bits == 3 else symmetric
    scales, codes = find(x, levels)
    scales = scales.reshape(-1, each)
    top, size = first_largest(scales.T)
    least = 0.0 if fmt.bits == 3 else NOTHING
    nothing = (size < least) | (size == 0)
    top = torch.where(nothing, 1.0, top).unsqueeze(-1)
    inverse = torch.full_like(top, -k_type.levels) / top
    scale_codes = nearest_int(inverse * scales).clamp(max=k_type.levels - 1)
    if fmt.bits == 3:
        scale_codes = scale_codes.clamp(min=-k_type.levels)
    nothing = nothing.unsqueeze(-1)
    empty = -k_type.levels if fmt.bits == 3 else 0  # what bytes of 0 mean
    scale_codes = torch.where(nothing, empty, scale_codes)
    d = half(torch.where(nothing, 0.0, inverse.reciprocal()))
    step = (d.float() * scale_codes.float()).flatten()
    again = nearest_int(x / step).clamp(-levels, levels - 1)
    codes = torch.where(step == 0, codes.int(), again)
    if fmt.bits == 6:
        codes = torch.where(nothing.expand_as(scale_codes).flatten(), -levels, codes)
    return EncodedBlocks(codes, scale_codes, d)


# ggml's types of one scale a block that are no rules of knobs (ggml-quants.c, commit d99724f2).


def _blocks(x: Tensor, fmt: Format) -> Tensor:
    """x [..., n] -> [size of a block, blocks] float32"""
    return in_blocks(widen(x), fmt).T.contiguous()


def _result(x: Tensor, fmt: Format, codes: Tensor, **parts: Tensor) -> tuple[Tensor, QParams]:
    return put_back(x, fmt, codes.T, **parts)


def _inverse(scale: Tensor) -> Tensor:
    return torch.where(scale == 0, 0.0, scale.reciprocal())


def _largest(blocks: Tensor) -> Tensor:
    return blocks.abs().amax(0)


def with_minimum(x: Tensor, fmt: Format) -> tuple[Tensor, QParams]:
    """Q4_1, Q5_1: steps above the smallest number, which is not widened to hold 0."""
    blocks = _blocks(x, fmt)
    low, high = blocks.amin(0), blocks.amax(0)
    levels = torch.full_like(low, fmt.levels.value)
    scale = (high - low) / levels
    codes = ((blocks - low) * _inverse(scale) + 0.5).trunc().clamp(max=fmt.levels.value)
    return _result(x, fmt, codes, scale=scale, offset=_first_of_zeros(blocks, low))


def _first_of_zeros(blocks: Tensor, low: Tensor) -> Tensor:
    """The smallest numbers; of 0 and -0 the first in its block, as a comparison keeps it."""
    zero = blocks == 0
    first = zero.to(torch.uint8).argmax(0, keepdim=True)
    return torch.where(low == 0, blocks.gather(0, first).squeeze(0), low)


def signs(x: Tensor, fmt: Format) -> tuple[Tensor, QParams]:
    """Q1_0: the mean of magnitudes, which are added in order; -0 counts as 0."""
    blocks = _blocks(x, fmt)
    total = ordered_sum(blocks.abs())
    codes = torch.where(blocks >= 0, 1, -1)
    return _result(x, fmt, codes, scale=total / torch.full_like(total, blocks.shape[0]))


def ternary(x: Tensor, fmt: Format) -> tuple[Tensor, QParams]:
    """TQ1_0, TQ2_0 and Q2_0: the largest magnitude is one step; halves go away from zero."""
    blocks = _blocks(x, fmt)
    scale = _largest(blocks)
    codes = nearest_away(blocks * _inverse(scale))
    if not fmt.asym:
        return _result(x, fmt, codes, scale=scale)
    zero = torch.ones_like(scale)  # codes are -1 ... 2, of which 2 stays unused
    return _result(x, fmt, codes.clamp(-1, 2) + 1, scale=scale, zero_point=zero)


def mxfp4(x: Tensor, fmt: Format) -> tuple[Tensor, QParams]:
    """MXFP4: the exponent of a float32 logarithm, which is too large just below a power of two."""
    blocks = _blocks(x, fmt)
    size = _largest(blocks)
    logarithm = size.double().log2().to(torch.float32).floor()
    byte = torch.where(size > 0, logarithm - 2 + 127, 0.0).clamp(min=0.0)
    step = torch.ldexp(torch.ones_like(size), (byte - 127).int())
    return _result(x, fmt, _nearest(blocks, step, fmt), scale=byte)


def nvfp4(x: Tensor, fmt: Format) -> tuple[Tensor, QParams]:
    """NVFP4: e4m3 of largest / 6 by the bits below, half up; the outer scale is 1."""
    blocks = _blocks(x, fmt)
    target = _largest(blocks) / torch.full_like(blocks[0], 6.0)
    bits = target.clamp(max=448.0).view(torch.int32)
    normal = (bits >> 20) - (120 << 3) + (bits >> 19 & 1)
    small = (target * 512.0 + 0.5).trunc().clamp(max=7.0).int()
    normal = torch.where(normal >= 15 << 3, 0x7E, normal)  # from 248 on it is 448
    code = torch.where(bits < 121 << 23, small, normal)
    step = fmt.scale.values(code.to(torch.uint8))  # type: ignore[union-attr]
    shape = fmt.stored(x.shape)["outer"][1]
    codes, qparams = _result(x, fmt, _nearest(blocks, step, fmt), scale=code)
    return codes, qparams._replace(outer=torch.ones(shape, device=x.device))


def _nearest(blocks: Tensor, step: Tensor, fmt: Format) -> Tensor:
    """The code of the nearest value, of two the first by code; 0 under a step of 0."""
    table, rest = first_of_equals(fmt.element)
    places = table.encode(blocks / step, nearest_even, None, False).long()
    codes = torch.tensor(rest, device=blocks.device)[places]
    return torch.where(step == 0, 0, codes)
