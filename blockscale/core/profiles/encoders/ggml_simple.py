# SPDX-License-Identifier: BSD-3-Clause
"""ggml's types of one scale a block that are no rules of knobs (ggml-quants.c, commit d99724f2)."""

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.profiles.codes import first_of_equals
from blockscale.core.profiles.encoders.compiled import ordered_sum
from blockscale.core.profiles.encoders.in_blocks import in_blocks, put_back
from blockscale.core.reference import QParams, widen
from blockscale.core.rounding import nearest_away, nearest_even


def _blocks(x: Tensor, fmt: Format) -> Tensor:
    """x [..., n] -> [size of a block, blocks] float32"""
    return in_blocks(widen(x), fmt).T.contiguous()


def _made(x: Tensor, fmt: Format, codes: Tensor, **parts: Tensor) -> tuple[Tensor, QParams]:
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
    return _made(x, fmt, codes, scale=scale, offset=_first_of_zeros(blocks, low))


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
    return _made(x, fmt, codes, scale=total / torch.full_like(total, blocks.shape[0]))


def ternary(x: Tensor, fmt: Format) -> tuple[Tensor, QParams]:
    """TQ1_0, TQ2_0 and Q2_0: the largest magnitude is one step; halves go away from zero."""
    blocks = _blocks(x, fmt)
    scale = _largest(blocks)
    codes = nearest_away(blocks * _inverse(scale))
    if not fmt.asym:
        return _made(x, fmt, codes, scale=scale)
    zero = torch.ones_like(scale)  # codes are -1 ... 2, of which 2 stays unused
    return _made(x, fmt, codes.clamp(-1, 2) + 1, scale=scale, zero_point=zero)


def mxfp4(x: Tensor, fmt: Format) -> tuple[Tensor, QParams]:
    """MXFP4: the exponent of a float32 logarithm, which is too large just below a power of two."""
    blocks = _blocks(x, fmt)
    size = _largest(blocks)
    logarithm = size.double().log2().to(torch.float32).floor()
    byte = torch.where(size > 0, logarithm - 2 + 127, 0.0).clamp(min=0.0)
    step = torch.ldexp(torch.ones_like(size), (byte - 127).int())
    return _made(x, fmt, _nearest(blocks, step, fmt), scale=byte)


def nvfp4(x: Tensor, fmt: Format) -> tuple[Tensor, QParams]:
    """NVFP4: e4m3 of largest / 6 by the bits below, half up; the outer scale is 1."""
    blocks = _blocks(x, fmt)
    wanted = _largest(blocks) / torch.full_like(blocks[0], 6.0)
    bits = wanted.clamp(max=448.0).view(torch.int32)
    normal = (bits >> 20) - (120 << 3) + (bits >> 19 & 1)
    small = (wanted * 512.0 + 0.5).trunc().clamp(max=7.0).int()
    normal = torch.where(normal >= 15 << 3, 0x7E, normal)  # from 248 on it is 448
    code = torch.where(bits < 121 << 23, small, normal)
    step = fmt.scale.values(code.to(torch.uint8))  # type: ignore[union-attr]
    shape = fmt.stored(x.shape)["outer"][1]
    codes, qparams = _made(x, fmt, _nearest(blocks, step, fmt), scale=code)
    return codes, qparams._replace(outer=torch.ones(shape, device=x.device))


def _nearest(blocks: Tensor, step: Tensor, fmt: Format) -> Tensor:
    """The code of the nearest value, of two the first by code; 0 under a step of 0."""
    table, kept = first_of_equals(fmt.element)
    places = table.encode(blocks / step, nearest_even, None, False).long()
    codes = torch.tensor(kept, device=blocks.device)[places]
    return torch.where(step == 0, 0, codes)
