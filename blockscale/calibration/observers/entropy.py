# SPDX-License-Identifier: BSD-3-Clause
"""The threshold that loses the least information.

Migacz: "8-bit inference with TensorRT", GTC 2017, the section on calibration. The distribution of
the values, clipped, is compared with what the format's codes can tell of it.
"""

from typing import ClassVar

import torch
from torch import Tensor

from blockscale.calibration import histogram
from blockscale.calibration.histogram import BINS, OCTAVES, Bins, Histogram
from blockscale.core.format import Format

STRIDE = 16  # bins between candidate thresholds: 16 an octave
_LOWEST = BINS * 4 // OCTAVES  # thresholds in the highest 12 of 16 octaves
_CHUNK = 2**19  # numbers at a time


class Entropy(Histogram):
    """Clips at the threshold T with the least Kullback-Leibler divergence of Q from P.

    P: the masses of the bins below T, with all mass beyond T added to the outermost of them that is
        not empty, on its side.
    Q: each bin below T is put through the format under the range that T gives. The mass of a code
        is spread over its bins that are not empty, in proportion to their width, as bins are not of
        one width here. What was beyond T is not in Q, as in the source.

    A threshold needs at least as many bins that are not empty as the format has codes for them,
    which is where the source starts, too: with fewer, Q equals P whatever is lost. So an int16 is
    not clipped, and thousands of values a block are needed to clip an int8.

    Bin 0 holds zeros, which every such format represents exactly: it stands for itself, or a ReLU's
    output would pull T down without end. Candidates are the largest magnitude and the upper edges
    of every 16th bin in the highest 12 octaves. Of equals the largest wins.

    Raises ValueError for formats with an offset, whose ranges need not hold 0.
    """

    name: ClassVar[str] = "entropy"

    def __init__(self, fmt: str | Format):
        super().__init__(fmt)
        if self._bare:
            raise ValueError(
                f"{self.fmt}: 'entropy' looks for a symmetric threshold, and this format has "
                "an offset: use another observer, such as 'mse'"
            )

    def _choose(self) -> tuple[Tensor, Tensor]:
        bins = self.bins()
        values = bins.clip(bins.value)
        places = torch.arange(BINS, _LOWEST, -STRIDE, device=bins.value.device)
        thresholds = self.edges()[:, places].t().reshape(-1, *self.low.shape)
        low = torch.maximum(self.low, -thresholds)
        high = torch.minimum(self.high, thresholds)
        step = max(1, _CHUNK // bins.value.numel())
        divergences = []
        for start in range(0, len(places), step):
            choice = slice(start, start + step)
            rest = histogram.round_trips(values, low[choice], high[choice], self.format)
            divergences.append(divergence(bins, rest, places[choice], self._levels))
        all_seen = divergences[0][0]  # the threshold that clips nothing is always allowed
        all_seen.clamp_(max=torch.finfo(torch.float64).max)
        best = torch.cat(divergences).argmin(0).reshape(1, *self.low.shape)  # the first of equals
        return low.gather(0, best)[0], high.gather(0, best)[0]

    @property
    def _levels(self) -> int:
        """How many codes there are for what the histogram tells apart."""
        return int(2 ** (self.format.bits - (self.format.element.signed and self.sides == 1)))


def divergence(bins: Bins, tensor: Tensor, places: Tensor, levels: int) -> Tensor:
    """KL(P || Q) [c, blocks] float64 for thresholds at the lower edges of bins `places` [c].

    left: what the format makes of the bins' values under each threshold [c, blocks, n].
    Infinite where fewer than `levels` bins below the threshold hold something.
    """
    inside = bins.place < places.view(-1, 1, 1)
    mass = bins.mass * inside
    full = mass > 0
    p = mass + _beyond(bins, inside, full)
    q = _even_out(mass, bins.width * full, _codes(bins, tensor))
    weight = p / p.sum(-1, keepdim=True)
    estimate = q / q.sum(-1, keepdim=True)
    terms = torch.where(full, weight * (weight / estimate).log(), 0.0)
    return torch.where(full.sum(-1) >= levels, terms.sum(-1), torch.inf)


def _beyond(bins: Bins, inside: Tensor, full: Tensor) -> Tensor:
    """Mass beyond the threshold [c, blocks, n], in the outermost bin of its side that is full."""
    n = bins.value.shape[-1]
    order = torch.arange(n, device=full.device)
    last = torch.where(full, order, -1).amax(-1, keepdim=True)
    first = torch.where(full, order, n).amin(-1, keepdim=True)
    outside = bins.mass * ~inside
    above = torch.where(bins.value > 0, outside, 0.0).sum(-1, keepdim=True)
    below = torch.where(bins.value < 0, outside, 0.0).sum(-1, keepdim=True)
    return above * (order == last) + below * (order == first)


def _codes(bins: Bins, tensor: Tensor) -> Tensor:
    """A number for each run of bins with one code [c, blocks, n] int64; bin 0 is on its own."""
    zero = (bins.place == 0).expand(tensor.shape)
    change = (tensor[..., 1:] != tensor[..., :-1]) | zero[..., 1:] | zero[..., :-1]
    return torch.cat([torch.zeros_like(change[..., :1]), change], -1).cumsum(-1)


def _even_out(mass: Tensor, width: Tensor, code: Tensor) -> Tensor:
    """The mass of each code over its bins in proportion to their width [c, blocks, n]."""
    nothing = torch.zeros_like(mass)
    total = nothing.scatter_add(-1, code, mass).gather(-1, code)
    broad = nothing.scatter_add(-1, code, width.double()).gather(-1, code)
    return torch.where(width > 0, total / broad * width, 0.0)
