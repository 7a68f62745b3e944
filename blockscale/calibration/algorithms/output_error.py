# SPDX-License-Identifier: BSD-3-Clause
"""Which transform leaves a layer's output nearest to what it was: the transforms' one criterion."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.format import Format
from blockscale.layers.before import Before
from blockscale.ops.quantize import fake_quantize

if TYPE_CHECKING:
    from blockscale.calibration.input_stats import InputStats

SAME = 1e-6  # errors that are nearer than this, relatively, are equal but for summation


class OutputError:
    """Measures candidates for one layer: sum (x @ w.T - Q(x') @ Q(w').T)² over its sample of rows.

    Q is the format itself, weights by absmax; x' is quantized only where the layer's input is, by
    scales chosen from the sample. Formats that round by chance are measured with nearest_even.
    """

    @torch.no_grad()
    def __init__(
        self,
        weight: Tensor,
        fmt: Format,
        input_fmt: Format | None,
        stats: "InputStats",
        layer: str,
    ):
        """Weight [n, k] and its format; `stats` of the inputs X [rows, k]. Raises ValueError where
        they do not fit together."""
        k = weight.shape[-1]
        if weight.ndim != 2 or tuple(stats.amax.shape) != (k,) or stats.sample.shape[-1] != k:
            raise ValueError(
                f"{layer}: expected statistics of {k} inputs for a weight {tuple(weight.shape)}, "
                f"found {stats.amax.shape[0]}"
            )
        self.weight = reference.widen(weight.detach())
        self.features = k // stats.places
        self._fmt = by_nearest(fmt)
        self._input_fmt = None if input_fmt is None else by_nearest(input_fmt.choosing)
        # rank 4, as a convolution's input has: any dimension that an input's block can name
        self._x = stats.sample.to(torch.float32).reshape(-1, 1, stats.places, self.features)
        self._y = self._product(self._x, self.weight)

    def _product(self, x: Tensor, weight: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return x.reshape(-1, weight.shape[-1]) @ weight.T

    @torch.no_grad()
    def of(self, before: Before | None) -> float:
        """The error with this in front of the layer, None for nothing."""
        x = self._x if before is None else before(self._x)
        weight = self.weight if before is None else before.to_weight(self.weight)
        if not bool(weight.isfinite().all()):
            return float("inf")
        weight = fake_quantize(weight, self._fmt)
        if self._input_fmt is not None:
            x = fake_quantize(x, self._input_fmt)
        return float((self._product(x, weight) - self._y).square().sum(dtype=torch.float64))

    def best(self, candidates: Sequence[tuple[str, Before]]) -> tuple[Before | None, list[str]]:
        """The candidate of least error and what it is, or None and why not: never a worse one."""
        if not bool(self.weight.isfinite().all()):
            return None, ["not transformed: its weight holds a NaN or an infinity"]
        without = self.of(None)
        if without == 0:
            return None, ["not transformed: its output has no error"]
        errors = [self.of(before) for _, before in candidates]
        least = min(errors, default=without)
        ratio = least / without
        if not ratio < 1 - SAME:
            return None, [f"not transformed: the error of its output would be {ratio:.3g} times"]
        told, before = candidates[errors.index(least)]
        return before, [f"{told} (error of its output {ratio:.3g} times)"]


def by_nearest(fmt: Format) -> Format:
    """A format that rounds by chance, without."""
    return replace(fmt, rounding="nearest_even") if fmt.rounding == "stochastic" else fmt
