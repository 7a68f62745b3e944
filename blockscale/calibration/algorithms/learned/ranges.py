# SPDX-License-Identifier: BSD-3-Clause
"""Scales and zero points that learned factors move: by how much each block's range is changed.

Factors are counted in octaves: 0 leaves the range that was found, 1 doubles it. Whatever they say,
the scale in use is the stored one, what the format's scale can be.
"""

from math import log

import torch
from torch import Tensor

from blockscale.calibration.algorithms.block_scales import choose_scales
from blockscale.calibration.algorithms.known_scale import nearest_scale
from blockscale.core import reference
from blockscale.core.arithmetic.bits import FLT_MAX
from blockscale.core.format import Format
from blockscale.core.reference import QParams


class BlockRanges:
    """The range of each block and how it moves.

    factors: float32 [ends, *scale's shape]: one end where a range is as wide to either side of 0;
        two, lower and upper, where the format has a zero point or an offset
    """

    def __init__(self, single: Format, start: QParams, outer: Tensor | None):
        """Start: scales, beside `outer` per block; single: the format that reads such outer scales
        (block_scales.spread)."""
        self._fmt, self._start = single, start._replace(outer=outer)
        self._step = reference.step_of(self._start, single)
        self.two_ends = single.asym or single.offset is not None
        shape = (1 + self.two_ends, *start.scale.shape)
        self.factors = torch.zeros(shape, device=start.scale.device)
        self.moved = False  # whether any factor is not 0
        self._ends = _found_ends(self._start, self._step, single) if self.two_ends else None

    def qparams(self) -> QParams:
        """What is stored for the factors now, the outer scale per block."""
        if not self.moved:
            return self._start
        if self._ends is None:
            wanted = self._step * self.factors[0].exp2()
            size = wanted.abs().clamp(max=FLT_MAX)
            scale = nearest_scale(size.copysign(wanted), self._start.outer, self._fmt)
            return self._start._replace(scale=scale)
        low, high = self._ends
        lower, upper = self.factors.exp2()
        if self._fmt.offset is None:  # 0 stays inside
            low, high = (low * lower).clamp(max=0.0), (high * upper).clamp(min=0.0)
        else:
            half = (high - low) / 2
            low, high = low + half * (1 - lower), high + half * (upper - 1)
        low, high = low.clamp(-FLT_MAX, FLT_MAX), high.clamp(-FLT_MAX, FLT_MAX)
        return choose_scales(low, high, self._fmt, self._start.outer)

    def slopes(self, inside: Tensor, below: Tensor | None, above: Tensor | None) -> Tensor:
        """Sums over blocks [scale's shape] -> the slope of the loss over `factors`.

        inside: of gradient · (value in steps - weight in steps), the latter only where nothing
            saturates (LSQ's equation 3; Esser et al. 2020)
        below, above: of the gradients of what saturates at either end; None with one end
        """
        if self._ends is None:
            return _bounded(inside * self._step * log(2))[None]
        assert below is not None and above is not None
        low, high = self._ends
        lowest, highest = self._fmt.element.limits(self._fmt.wide)
        share = inside / (highest - lowest)
        if self._fmt.offset is not None:
            low, high = (low - high) / 2, (high - low) / 2
        ends = (below - share) * low, (above + share) * high
        return _bounded(torch.stack(ends) * log(2))


def _found_ends(start: QParams, step: Tensor, fmt: Format) -> tuple[Tensor, Tensor]:
    """The smallest and the largest value that the codes of each block can mean."""
    low, high = fmt.element.limits(fmt.wide)
    if start.offset is not None:
        offset = start.offset.to(torch.float32)
        return low * step + offset, high * step + offset
    assert start.zero_point is not None
    zero = start.zero_point.to(torch.float32)
    return (low - zero) * step, (high - zero) * step


def _bounded(slopes: Tensor) -> Tensor:
    """Slopes whose squares are finite: those of the largest floats overflow."""
    return slopes.nan_to_num(0.0).clamp(-1e15, 1e15)
