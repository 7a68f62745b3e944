# SPDX-License-Identifier: BSD-3-Clause
"""Means over sequences of different lengths, with the standard errors that belong to them."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

# What a batch gives for each name: sums and weights, float64 [sequences] each.
Parts = Mapping[str, tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Figure:
    """A mean, and how far it may be off.

    mean: the sum over all sequences divided by the sum of their weights (tokens, words, images)
    error: its standard error, sequences being drawn independently; NaN for a single sequence
    sequences: how many were measured
    weight: the sum of their weights
    """

    mean: float
    error: float
    sequences: int
    weight: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, which has neither NaN nor infinity: null."""
        return {k: None if _odd(v) else v for k, v in asdict(self).items()}

    def __str__(self) -> str:
        return f"{self.mean:.4f} ± {self.error:.4f}"


def _odd(value: float) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


class Accumulated:
    """The sums and weights of every sequence so far: two numbers a sequence and name."""

    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = {}
        self._weights: dict[str, list[float]] = {}

    def add(self, parts: Parts) -> None:
        """What one batch gave. Raises ValueError where sums and weights are of different lengths,
        or a weight is negative."""
        for name, (sums, weights) in parts.items():
            if sums.shape != weights.shape or sums.dim() != 1:
                raise ValueError(
                    f"figure {name!r}: expected one sum and one weight for each sequence, found "
                    f"shapes {tuple(sums.shape)} and {tuple(weights.shape)}"
                )
            if bool((weights < 0).any()):
                raise ValueError(f"figure {name!r}: a weight is negative")
            self._sums.setdefault(name, []).extend(sums.double().tolist())
            self._weights.setdefault(name, []).extend(weights.double().tolist())

    def figures(self) -> dict[str, Figure]:
        """Each name's Figure, in the order in which names came.

        The error is that of a ratio of sums (W. G. Cochran, Sampling Techniques, 3rd ed., 1977,
        section 6.4): n / (n - 1) · Σ (sumᵢ - mean · weightᵢ)² under the root, over Σ weightᵢ.
        """
        return {name: self._figure(name) for name in self._sums}

    def _figure(self, name: str) -> Figure:
        sums = torch.tensor(self._sums[name], dtype=torch.float64)
        weights = torch.tensor(self._weights[name], dtype=torch.float64)
        count, weight = len(sums), float(weights.sum())
        if weight == 0:
            return Figure(math.nan, math.nan, count, 0.0)
        mean = float(sums.sum()) / weight
        if count < 2:
            return Figure(mean, math.nan, count, weight)
        square = float((sums - mean * weights).square().sum()) * count / (count - 1)
        return Figure(mean, math.sqrt(square) / weight, count, weight)


def exponential(figure: Figure) -> Figure:
    """exp of a figure, such as the perplexity of a loss; its error to the first order."""
    try:
        mean = math.exp(figure.mean)
    except OverflowError:
        mean = math.inf
    return Figure(mean, mean * figure.error, figure.sequences, figure.weight)
