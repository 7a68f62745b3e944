# SPDX-License-Identifier: BSD-3-Clause
"""The range with the least squared error, measured with the format itself."""

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor

from blockscale.calibration import histogram
from blockscale.calibration.histogram import Bins, Histogram
from blockscale.core.arithmetic.precision import FLT_MAX
from blockscale.core.scale import PowerOfTwo

_COARSE = [2.0 ** (-i / 8) for i in range(1, 128)]  # 16 octaves, as in the histogram
_FINE = [2.0 ** (i / 64) for i in range(8, -9, -1)]
_END = [2.0 ** (i / 16) for i in range(16, -17, -1)]  # for one end of a range with a zero point
_CHUNK = 2**21  # numbers at a time


class MSEObserver(Histogram):
    """Shrinks the range of each block to where the values' mean squared error is least.

    The error is that of the format as it will be used: stored scale, zero point, element and
    rounding (stochastic rounding counts as nearest). Candidates are the range seen, times 2^(-i/8),
    then those near the best by 2^(1/64); with a zero point each end then moves by itself. Of equal
    errors the largest range wins. Under power-of-two scales twice the range is a candidate, too:
    rules such as `floor` may choose a scale under which the largest values saturate.

    weighted: every `observe` may bring weights, such as how sensitive the output is to an element;
        what comes without has weight 1. Sums of weights are float64, so their last bits depend on
        the order of the data. The spec is `mse:weighted`.

    Under two-level scales the block that sets the outer scale keeps its range. With an offset,
    ranges shrink towards their middle.
    """

    name: ClassVar[str] = "mse"
    setting: ClassVar[str] = "weighted"
    means: ClassVar[bool] = True

    @classmethod
    def read(cls, text: str) -> dict[str, Any]:
        if text != "weighted":
            raise ValueError(
                f"'{cls.name}:{text}': unknown setting {text!r}; the only one is "
                f"'{cls.name}:weighted'"
            )
        return {"weighted": True}

    def _choose(self) -> tuple[Tensor, Tensor]:
        bins = self.bins()
        pinned = histogram.pinned(self.low, self.high, self.format)
        fractions = torch.stack([torch.ones_like(self.low)] * 2)  # of low and of high
        largest = 2 * fractions
        for factors, ends in self._moves():
            table = [[factor if moves else 1.0 for moves in ends] for factor in factors]
            factor = torch.tensor(table, device=pinned.device).view(-1, 2, *[1] * pinned.ndim)
            trials = torch.where(pinned, fractions, torch.minimum(fractions * factor, largest))
            errors = self._errors(bins, *self._ends(trials[:, 0], trials[:, 1]))
            best = errors.argmin(0).reshape(pinned.shape)  # the first of equals
            fractions = trials.gather(0, best.expand(1, *fractions.shape))[0]
            largest = fractions.clamp(min=1.0)
        low, high = self._ends(fractions[0], fractions[1])
        if self.format.wide:
            return low, high
        threshold = torch.maximum(-low, high)  # one for both sides: say what is clipped
        low = torch.where(fractions[0] < 1, torch.maximum(self.low, -threshold), low)
        return low, torch.where(fractions[1] < 1, torch.minimum(self.high, threshold), high)

    def _moves(self) -> Iterator[tuple[list[float], tuple[bool, bool]]]:
        """Factors to try, and which ends of the range they move."""
        twice = [2.0] * isinstance(self.format.scale, PowerOfTwo)
        yield [1.0, *twice, *_COARSE], (True, True)
        yield _FINE, (True, True)
        for _ in range(2 * (self.format.asym or self._bare)):
            yield _END, (False, True)
            yield _END, (True, False)

    def _ends(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Fractions of what was seen -> ranges."""
        if self._bare:
            lowest, highest = self.extremes()
            middle = lowest / 2 + highest / 2
            ends = (middle + (lowest - middle) * low, middle + (highest - middle) * high)
            return ends[0].clamp(min=-FLT_MAX), ends[1].clamp(max=FLT_MAX)
        return (self.low * low).clamp(min=-FLT_MAX), (self.high * high).clamp(max=FLT_MAX)

    def _errors(self, bins: Bins, low: Tensor, high: Tensor) -> Tensor:
        """Candidate ranges [c, scale's shape] -> squared errors [c, blocks] float64.

        They are in units of a block's largest magnitude squared, so that none overflows.
        """
        values = bins.clip(bins.value)
        unit = values.abs().amax(-1, keepdim=True).double()
        unit = torch.where(unit > 0, unit, 1.0)
        step = max(1, _CHUNK // values.numel())
        errors = []
        for start in range(0, len(low), step):
            choice = slice(start, start + step)
            rest = histogram.round_trips(values, low[choice], high[choice], self.format)
            error = (rest.double() - values) / unit
            errors.append((error.square_() * bins.mass).sum(-1))
        return torch.cat(errors)
