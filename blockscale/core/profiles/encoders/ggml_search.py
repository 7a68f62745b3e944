# SPDX-License-Identifier: BSD-3-Clause
"""ggml's searches for the scale of a few numbers (ggml-quants.c, commit d99724f2).

Each takes numbers x [n, blocks] float32, the n of one block along dimension 0, in the order in
which ggml adds them, and gives scales [blocks] and codes [n, blocks].
"""

from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.core.profiles.encoders.compiled import nearest_int, ordered_sum
from blockscale.core.profiles.encoders.largest import first_largest

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

    def tried(inverse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        codes = nearest_int(inverse * x).clamp(-levels, levels - 1).float()
        product, square = ordered_sum(torch.stack([weighted * codes, weights * codes * codes], 1))
        return codes, product, square

    codes, product, square = tried(torch.full_like(top, -levels) / top)
    scale = torch.where(square != 0, product / square, 0.0)
    best = scale * product
    tenth = torch.tensor(0.1, dtype=torch.float32, device=x.device)
    for k in (*range(-9, 0), *range(1, 10)):
        more = tenth * k + levels
        others, product, square = tried(-more / top)
        better = (square > 0) & (product * product > best * square)
        codes = torch.where(better, others, codes)
        scale = torch.where(better, product / square, scale)
        best = torch.where(better, scale * product, best)
    return torch.where(nothing, 0.0, scale), torch.where(nothing, -levels, codes)


def refined(x: Tensor, levels: int) -> tuple[Tensor, Tensor]:
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


def with_minimum(x: Tensor, weights: Tensor, trials: Trials) -> tuple[Tensor, Tensor, Tensor]:
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
        new = _fitted(x, weights, codes, (total_w, total_x))
        new = new._replace(error=_error(x, weights, new, trials))
        better = new.error < now.error  # NaN, where nothing can be fitted, is not
        now = Range(*(torch.where(better, a, b) for a, b in zip(new, now, strict=True)))
    return (
        torch.where(constant, 0.0, now.scale),
        torch.where(constant, -low, -now.low),
        torch.where(constant, 0.0, now.codes),
    )


def _fitted(x: Tensor, weights: Tensor, codes: Tensor, totals: tuple[Tensor, Tensor]) -> Range:
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


def _error(x: Tensor, weights: Tensor, made: Range, trials: Trials) -> Tensor:
    off = made.scale * made.codes + made.low - x
    return ordered_sum(weights * (off.abs() if trials.absolute else off * off))
