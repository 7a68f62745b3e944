# SPDX-License-Identifier: BSD-3-Clause
"""Means over sequences with the standard errors that belong to them, and a run's in one value."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from blockscale.calibration.comparison import Comparison
from blockscale.core.untrusted import json_object, read_json
from blockscale.files.whole import check_place, written_whole

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


class FigureSums:
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
                raise ValueError(
                    f"figure {name!r}: found the weight {float(weights.min()):g}, expected "
                    "weights >= 0"
                )
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


# What bs.evaluate measured: a value, a table, and a file.

_SCHEMA = 1


@dataclass(frozen=True)
class Evaluation:
    """The figures of a model over its sequences, beside those of a reference where one was given.

    kind: what the model's work is (blockscale.evaluation.kinds)
    figures: {name: Figure}: "loss" (nats a token), "perplexity", "accuracy"; with a reference
        "loss added", "kl" (nats, of the reference against the model), "top-1 agreement",
        "top-10 agreement" (the mean share of the reference's ten likeliest tokens that are among
        the model's ten), and for other outputs "relative error" and "cosine"; what a function of
        the user's gave, under its own names
    positions: {"loss", "kl": the mean at each position, from the first}, of tokens
    layers: each quantized layer's divergence (bs.compare), where `layers=True` asked for it
    about: what it was measured on, as the caller says: text, lengths, versions
    """

    kind: str
    figures: Mapping[str, Figure]
    positions: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    layers: Comparison | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Figure:
        try:
            return self.figures[name]
        except KeyError:
            raise KeyError(
                f"unknown figure {name!r}; choose from {', '.join(self.figures)}"
            ) from None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "schema": _SCHEMA,
            "kind": self.kind,
            "figures": {name: figure.to_dict() for name, figure in self.figures.items()},
            "positions": {name: list(values) for name, values in self.positions.items()},
            "layers": None if self.layers is None else self.layers.to_dict(),
            "about": dict(self.about),
        }

    def save(self, path: str | Path) -> None:
        """Write it as JSON, whole or not at all; `blockscale.evaluation.figures.read` reads it.

        Raises ValueError for a path that is a directory or lies in none.
        """
        path = check_place(path, "evaluation.json")
        with written_whole(path) as temporary:
            temporary.write_text(json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n")

    def __str__(self) -> str:
        """A line a figure: name, mean, standard error."""
        width = max(map(len, self.figures), default=0)
        lines = [f"{name:{width}}  {figure}" for name, figure in self.figures.items()]
        count = next((f.sequences for f in self.figures.values()), 0)
        return "\n".join([*lines, f"{count} sequences; ± is the standard error over them"])


def read(path: str | Path) -> dict[str, Figure]:
    """The figures of a file that `Evaluation.save` or `blockscale eval --out` wrote.

    Raises ValueError, naming the file, for anything else.
    """
    path = Path(path)
    data = json_object(read_json(path), path)
    figures = data.get("figures")
    if data.get("schema") != _SCHEMA or not isinstance(figures, dict):
        raise ValueError(f"{path} is no evaluation: expected what `blockscale eval --out` writes")
    return {str(name): _figure(path, name, figure) for name, figure in figures.items()}


def _figure(path: Path, name: str, data: Any) -> Figure:
    keys = ("mean", "error", "sequences", "weight")
    values = [data.get(key) for key in keys] if isinstance(data, dict) else []
    if len(values) != len(keys) or not all(
        value is None or (isinstance(value, int | float) and not isinstance(value, bool))
        for value in values
    ):
        raise ValueError(
            f"{path}: figure {name!r} is {str(data)[:80]}, expected an object of the numbers "
            f"{', '.join(keys)}"
        )
    mean, error, sequences, weight = (math.nan if v is None else v for v in values)
    return Figure(float(mean), float(error), int(sequences), float(weight))
