# SPDX-License-Identifier: BSD-3-Clause
"""ggml's K types: 256 numbers whose scales and minimums are codes of 4, 6 or 8 bits themselves.

As `ggml_quantize_chunk` does without an importance matrix (ggml-quants.c, commit d99724f2).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.profiles.encoders import ggml_search as search
from blockscale.core.profiles.encoders.compiled import (
    nearest_int,
    ordered_sum,
    square_root,
)
from blockscale.core.profiles.encoders.ggml_search import Trials
from blockscale.core.profiles.encoders.largest import first_largest
from blockscale.core.profiles.encoders.super_blocks import SUPER, Parts, by_super_block, half
from blockscale.core.reference import QParams


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

    def _encode(self, x: Tensor, fmt: Format) -> Parts:
        """x [n, blocks] float32, n numbers in each of 256 / n blocks in a row"""
        if self.trials is None:
            return _symmetric(x, fmt, self)
        return _with_minimums(x, self.trials, self)


def _with_minimums(x: Tensor, trials: Trials, k_type: KType) -> Parts:
    each = SUPER // x.shape[0]
    scales, minimums, codes = search.with_minimum(x, _weights(x, trials), trials)
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
    return Parts(torch.where(step == 0, codes.int(), again), scale_codes, d, minimum_codes, -dmin)


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


def _symmetric(x: Tensor, fmt: Format, k_type: KType) -> Parts:
    each, levels = SUPER // x.shape[0], 2 ** (fmt.bits - 1)
    find = search.refined if fmt.bits == 3 else search.symmetric
    scales, codes = find(x, levels)
    scales = scales.reshape(-1, each)
    top, size = first_largest(scales.T)
    least = 0.0 if fmt.bits == 3 else search.NOTHING
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
    return Parts(codes, scale_codes, d)
