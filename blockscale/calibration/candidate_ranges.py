# SPDX-License-Identifier: BSD-3-Clause
"""What a format makes of values under candidate ranges: the same rules that will be used."""

from dataclasses import replace

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.block import read_block
from blockscale.core.blocks import Blocks
from blockscale.core.format import Format
from blockscale.core.operand import Quantizer
from blockscale.core.scale import FLOAT_SCALES
from blockscale.core.scales.offset import Offset
from blockscale.core.scales.two_level import TwoLevel
from blockscale.ops import primitives


def round_trips(values: Tensor, low: Tensor, high: Tensor, fmt: Format) -> Tensor:
    """Values [blocks, n] float32 of each block -> what each candidate leaves [c, blocks, n].

    low, high: the candidate ranges [c, scale's shape]. Scales are stored as the format stores them.
    """
    steps, zeros, offsets = [], [], []
    for each_low, each_high in zip(low, high, strict=True):
        poisoned = torch.zeros_like(each_low, dtype=torch.bool)
        qparams = reference.qparams_from_range(each_low, each_high, poisoned, fmt)
        steps.append(reference.step_of(qparams, fmt).flatten())
        zeros.append(qparams.zero_point)
        if fmt.offset is not None and qparams.offset is not None:
            offsets.append(fmt.offset.value(qparams.offset, qparams.offset_outer).flatten())
    # a block a row, under its step: the same arithmetic for every layout and every kind of scale
    float32 = FLOAT_SCALES["fp32"]
    rows = replace(fmt.deterministic, block=read_block("token"), scale=float32)
    if offsets:
        rows = replace(rows, offset=Offset(float32))
    more = [torch.stack(offsets).view(-1, 1)] if offsets else None
    zero_point = torch.stack([z.flatten() for z in zeros if z is not None]) if fmt.asym else None
    count = len(low)
    zero_point = None if zero_point is None else zero_point.view(-1, 1)
    by = Quantizer(torch.stack(steps).view(-1, 1), zero_point, None, str(rows), None, more)
    rounded: Tensor = primitives.fake_quantize(values.repeat(count, 1), by)
    return rounded.view(count, *values.shape)


def pinned(low: Tensor, high: Tensor, fmt: Format) -> Tensor:
    """Ranges [scale's shape] -> bool: blocks whose range must stay, as it sets the outer scale.

    Under two levels the scales of all blocks are relative to the largest. Where that one stays, a
    candidate for one block changes nothing for the others.
    """
    if not isinstance(fmt.scale, TwoLevel) or low.numel() == 1:
        return torch.zeros_like(low, dtype=torch.bool)
    numerator = reference.numerator(low, high, fmt)
    block = fmt.scale.inner.block
    return numerator == block.expand(Blocks(numerator, block).range()[1], numerator.shape)
