# SPDX-License-Identifier: BSD-3-Clause
"""Several observers, and of those the one whose scale proves best."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from blockscale.calibration.histogram import KeptValues
from blockscale.calibration.observer import Observer, is_mean
from blockscale.calibration.observers import Spec, make
from blockscale.core.format import Format

RANGES = ("min_max", "percentile", "entropy", "mse")
BARE = ("min_max", "percentile", "mse")  # with an offset
MEANS = ("mean", "mse")
_OLD = ("rows", "held", "priority")  # of states of release 0.1.0, which held a sample back


class Adaptive(Observer):
    """Takes the observer with the least squared fake-quantization error over all that was seen.

    Every observer sees everything. The error of each one's scale is measured on the values
    themselves while there are at most 65536, and then on their histogram, which a rare outlier
    enters like everything else. Measured so, an element is off by at most half its bin: 2^-9 of
    it, or 2^-14 of the largest one. An error is a distance to the nearest code, so that is how far
    its root mean square may be off, and twice that how far above the best the chosen one may be
    (for formats that round to nearest).

    tried: specs of observers, at least two. The spec is `adaptive:min_max+mse`.
    won: the spec of the best; errors: the mean squared error of each. Both raise ValueError if
        nothing was seen.
    """

    name: ClassVar[str] = "adaptive"
    setting: ClassVar[str] = "tried"
    means: ClassVar[bool] = True
    merges_exactly: ClassVar[bool] = False  # where one of them does not: a mean, a moving average

    def __init__(self, fmt: str | Format, tried: Sequence[Spec] = ()):
        super().__init__(fmt)
        ranges = BARE if self._bare else RANGES
        tried = tried or (MEANS if is_mean(self.format) else ranges)
        if len(tried) < 2:
            raise ValueError(f"'adaptive' needs two or more observers to choose from, got {tried}")
        self.tried = [spec if isinstance(spec, str) else repr(spec) for spec in tried]
        for i, spec in enumerate(tried):
            self.add_module(str(i), make(spec, self.format))
        if not any(isinstance(observer, KeptValues) for observer in self._observers()):
            self.add_module("values", KeptValues(self.format))
        self._old_sample: Tensor | None = None
        self.register_load_state_dict_post_hook(_show_held)

    @classmethod
    def read(cls, text: str) -> dict[str, Any]:
        return {"tried": text.split("+")}

    def _update(
        self, x: Tensor, low: Tensor, high: Tensor, finite: Tensor | None, weight: Tensor | None
    ) -> None:
        super()._update(x, low, high, finite, weight)
        if finite is not None:
            x = torch.where(finite, x, torch.nan)  # the observers leave them out, too
        self._show(x)

    def _show(self, x: Tensor) -> None:
        for child in self.children():
            child.observe(x)  # type: ignore[operator]

    def _observers(self) -> list[Observer]:
        """Those that were tried."""
        return [self.get_submodule(str(i)) for i in range(len(self.tried))]  # type: ignore[misc]

    def _values(self) -> KeptValues:
        """What the errors are measured on: kept by one of the observers, or beside them."""
        return next(child for child in self.children() if isinstance(child, KeptValues))

    def _choose(self) -> tuple[Tensor, Tensor]:
        low, high, _ = self._observers()[self.tried.index(self.won)].range()
        return low, high

    def describe(self) -> str:
        text = super().describe()
        if not self.finite:
            return text
        (best, least), (second, next_least), *_ = sorted(self.errors.items(), key=lambda e: e[1])
        gain = 10 * math.log10(next_least / least) if least else math.inf
        return f"{text}; {best} won, its error {gain:.2f} dB below that of {second}"

    @property
    def errors(self) -> dict[str, float]:
        """The mean squared fake-quantization error of each on what was seen."""
        if not self.finite:
            raise ValueError(f"'adaptive' ({self.fmt}) saw no data: {super().describe()}")
        points = self._values().points()
        return {
            spec: points.mean_squared_error(*observer.range()[:2], self.format)
            for spec, observer in zip(self.tried, self._observers(), strict=True)
        }

    @property
    def won(self) -> str:
        """The spec with the least error; of equals, the one named first."""
        errors = self.errors
        return min(errors, key=lambda spec: errors[spec])

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *rest: Any, **others: Any
    ) -> None:
        old = {name: state_dict.pop(prefix + name, None) for name in _OLD}
        self._old_sample = old["held"]
        super()._load_from_state_dict(state_dict, prefix, *rest, **others)


def _show_held(adaptive: nn.Module, _: Any) -> None:
    """After loading a state of release 0.1.0: show the observers what was held back from them."""
    assert isinstance(adaptive, Adaptive)
    sample, adaptive._old_sample = adaptive._old_sample, None
    if sample is not None and sample.numel():
        adaptive._show(sample.reshape(-1, adaptive.low.shape[-1]))
