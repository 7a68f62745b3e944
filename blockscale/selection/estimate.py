# SPDX-License-Identifier: BSD-3-Clause
"""What a recipe will cost, foretold from what was measured of layers; and what it then does."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from blockscale.calibration.batches import call, inference
from blockscale.core.layout import stored_bytes
from blockscale.core.recipe import Recipe
from blockscale.layers.apply import quantize_
from blockscale.selection.candidates import Candidate
from blockscale.selection.choices import Choice
from blockscale.selection.choose import LayerChoice
from blockscale.selection.objective import Measured, Objective
from blockscale.selection.times import inputs_of, race


@dataclass(frozen=True)
class Estimate:
    """Of a model under a recipe. bytes: of all its parameters, exact; quality: of the search's
    objective; seconds, float_seconds: of the first batch, quantized and in float; None where
    nothing was run."""

    bytes: int
    float_bytes: int
    seconds: float | None = None
    float_seconds: float | None = None
    quality: float | None = None

    @property
    def speedup(self) -> float | None:
        """How many times as fast as in float."""
        if self.seconds is None or self.float_seconds is None:
            return None
        return self.float_seconds / self.seconds


@dataclass(frozen=True)
class Checked:
    """What was foretold, and what then was measured."""

    foretold: Estimate
    measured: Estimate

    @property
    def errors(self) -> dict[str, float]:
        """{figure: foretold over measured, less 1}, of those that both have."""
        found = {}
        for name in ("bytes", "seconds", "speedup", "quality"):
            a, b = getattr(self.foretold, name), getattr(self.measured, name)
            if a is not None and b:
                found[name] = a / b - 1
        return found


def float_bytes(model: nn.Module) -> int:
    """Bytes of all parameters, each once."""
    return sum(stored_bytes(each) for each in model.parameters())


def bytes_under(model: nn.Module, layers: Sequence[LayerChoice], taken: Mapping[str, str]) -> int:
    """Bytes of all parameters under a recipe, without making it. taken: {layer: candidate}."""
    saved = 0
    for layer in layers:
        if layer.name in taken:
            bits = layer[taken[layer.name]].bits * layer.elements
            saved += layer.float_bits // 8 - round(bits / 8)
    return float_bytes(model) - saved


def foretold_seconds(
    model: nn.Module, found: Sequence[Choice], chosen: Mapping[str, Candidate], batch: Any
) -> tuple[float, float]:
    """Seconds of the model for a batch with these candidates, and in float.

    The quantized model is not run: the float layers, one after the other as the model calls them,
    are timed beside the chosen ones, so that each finds caches as it will in the model, and their
    times are exchanged in that of the float model.
    """
    inputs = inputs_of(model, found, batch)
    floats, others = [], []
    for choice in found:
        made = choice.layers(chosen[choice.name]) if choice.name in chosen else {}
        for module, first in zip(choice.modules, choice.firsts, strict=True):
            own = made.get(first, module)
            floats += [(module.forward, x) for x in inputs[module]]
            others += [(own.forward, x) for x in inputs[module]]
    times = race(
        {
            "model": lambda: call(model, batch),
            "float": lambda: [forward(x) for forward, x in floats],
            "chosen": lambda: [forward(x) for forward, x in others],
        }
    )
    return exchanged(times["model"], times["float"], times["chosen"]), times["model"]


def exchanged(model: float, float_layers: float, layers: float) -> float:
    """The model's time with other layers; at least theirs."""
    return max(model - float_layers, 0.0) + layers


def check(
    model: nn.Module,
    recipe: Recipe,
    foretold: Estimate,
    batches: Sequence[Any],
    objective: Objective,
) -> Checked:
    """Quantize a copy, and measure what was foretold: bytes, time of the first batch beside the
    float model's, and quality over the batches."""
    changed = copy.deepcopy(model)
    ledger = quantize_(changed, recipe)
    total = Measured()
    with inference(model, changed):
        for batch in batches:
            a, b = (objective.of(call(each, batch), batch) for each in (model, changed))
            total += objective.measure(a, b, batch)
        with torch.no_grad():
            times = race(
                {
                    "float": lambda: call(model, batches[0]),
                    "quantized": lambda: call(changed, batches[0]),
                }
            )
    measured = Estimate(
        ledger.bytes_after, ledger.bytes_before, times["quantized"], times["float"], total.quality
    )
    return Checked(foretold, measured)
