# SPDX-License-Identifier: BSD-3-Clause
"""What each candidate does to each layer, and to the model: measured."""

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from blockscale.calibration.batches import call, inference
from blockscale.calibration.errors import Sums
from blockscale.calibration.input_stats import Callback, watch
from blockscale.core.pack import stored_bytes
from blockscale.core.recipe import Recipe
from blockscale.core.work import Progress
from blockscale.layers.apply import quantize_
from blockscale.layers.layer import QLayer
from blockscale.layers.model import swap
from blockscale.selection.candidates import Candidate, WeightOptions
from blockscale.selection.choose import LayerChoice
from blockscale.selection.objective import Curvature, MeasuredObjective, Objective
from blockscale.selection.times import inputs_of, race

# What a recipe will cost, foretold from what was measured of layers; and what it then does.


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
class CheckedEstimate:
    """What was foretold, and what then was measured."""

    foretold: Estimate
    measured: Estimate

    @property
    def errors(self) -> dict[str, float]:
        """{figure: foretold over measured, less 1}, of those that both have."""
        data = {}
        for name in ("bytes", "seconds", "speedup", "quality"):
            a, b = getattr(self.foretold, name), getattr(self.measured, name)
            if a is not None and b:
                data[name] = a / b - 1
        return data


def float_bytes(model: nn.Module) -> int:
    """Bytes of all parameters, each once."""
    return sum(stored_bytes(each) for each in model.parameters())


def bytes_under(model: nn.Module, layers: Sequence[LayerChoice], formats: Mapping[str, str]) -> int:
    """Bytes of all parameters under a recipe, without making it. taken: {layer: candidate}."""
    savings = 0
    for layer in layers:
        if layer.name in formats:
            bits = layer[formats[layer.name]].bits * layer.elements
            savings += layer.float_bits // 8 - round(bits / 8)
    return float_bytes(model) - savings


def predicted_seconds(
    model: nn.Module,
    options: Sequence[WeightOptions],
    candidates: Mapping[str, Candidate],
    batch: Any,
) -> tuple[float, float]:
    """Seconds of the model for a batch with these candidates, and in float.

    The quantized model is not run: the float layers, one after the other as the model calls them,
    are timed beside the chosen ones, so that each finds caches as it will in the model, and their
    times are exchanged in that of the float model.
    """
    inputs = inputs_of(model, options, batch)
    floats, others = [], []
    for choice in options:
        result = choice.layers(candidates[choice.name]) if choice.name in candidates else {}
        for module, first in zip(choice.modules, choice.firsts, strict=True):
            own = result.get(first, module)
            floats += [(module.forward, x) for x in inputs[module]]
            others += [(own.forward, x) for x in inputs[module]]
    times = race(
        {
            "model": lambda: call(model, batch),
            "float": lambda: [forward(x) for forward, x in floats],
            "chosen": lambda: [forward(x) for forward, x in others],
        }
    )
    return exchange(times["model"], times["float"], times["chosen"]), times["model"]


def exchange(model: float, float_layers: float, layers: float) -> float:
    """The model's time with other layers; at least theirs."""
    return max(model - float_layers, 0.0) + layers


def check(
    model: nn.Module,
    recipe: Recipe,
    foretold: Estimate,
    batches: Sequence[Any],
    objective: Objective,
) -> CheckedEstimate:
    """Quantize a copy, and measure what was foretold: bytes, time of the first batch beside the
    float model's, and quality over the batches."""
    quantized = copy.deepcopy(model)
    ledger = quantize_(quantized, recipe)
    total = MeasuredObjective()
    with inference(model, quantized):
        for batch in batches:
            a, b = (objective.of(call(each, batch), batch) for each in (model, quantized))
            total += objective.measure(a, b, batch)
        with torch.no_grad():
            times = race(
                {
                    "float": lambda: call(model, batches[0]),
                    "quantized": lambda: call(quantized, batches[0]),
                }
            )
    estimate = Estimate(
        ledger.bytes_after, ledger.bytes_before, times["quantized"], times["float"], total.quality
    )
    return CheckedEstimate(foretold, estimate)


Errors = dict[str, dict[str, float]]  # {choice: {"sqnr": …, "fisher": …, "loss": …}}


class Laboratory:
    """A float model, the batches that it is measured on, and what it gives for them.

    holdout: batches on which the quality of whole models is measured
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Sequence[Any],
        members: Sequence[Any],
        objective: Objective,
        progress: Progress,
    ):
        self.model, self.batches, self.holdout = model, batches, members
        self.objective, self.progress = objective, progress
        self._references: dict[int, Any] = {}  # id of a batch -> what counts of its output

    def reference(self, batch: Any) -> Any:
        """What counts of the float model's output."""
        if id(batch) not in self._references:
            self._references[id(batch)] = self.objective.of(call(self.model, batch), batch)
        return self._references[id(batch)]

    def remember(self) -> None:
        """Run the float model on every batch, before anything is put into it."""
        for batch in (*self.batches, *self.holdout):
            self.reference(batch)

    def measure(self, layers: Mapping[str, nn.Module], batches: Sequence[Any]) -> MeasuredObjective:
        """The model with these layers in it, which are taken out again."""
        total = MeasuredObjective()
        with place(self.model, layers):
            for batch in batches:
                outputs = self.objective.of(call(self.model, batch), batch)
                total += self.objective.measure(self.reference(batch), outputs, batch)
                self.progress.advance()
        return total

    def outputs(
        self, choices: Sequence[WeightOptions], layers: Mapping[str, QLayer]
    ) -> dict[str, float]:
        """{choice: SQNR in dB of its layers' outputs, given the float model's inputs}."""
        sums = {choice.name: Sums() for choice in choices}
        callbacks: dict[nn.Module, Callback] = {}
        for choice in choices:
            for module, name in zip(choice.modules, choice.firsts, strict=True):
                callbacks[module] = _comparing(layers[name], sums[choice.name])
        with watch(callbacks):
            for batch in self.batches:
                call(self.model, batch)
                self.progress.advance()
        return {
            name: each.result().sqnr if each.elements else math.nan for name, each in sums.items()
        }


def _comparing(layer: QLayer, sums: Sums) -> Callback:
    @torch.no_grad()
    def look(x: Tensor, y: Any) -> None:
        if isinstance(y, Tensor):
            sums.add(y, layer.like(x, y))

    return look


@contextmanager
def place(model: nn.Module, layers: Mapping[str, nn.Module]) -> Iterator[None]:
    """These layers in the model, by name; what was there comes back, whatever happens."""
    old = swap(model, layers)
    try:
        yield
    finally:
        swap(model, old)


def errors_of(
    candidate: Candidate,
    choices: Sequence[WeightOptions],
    lab: Laboratory,
    curvature: Curvature | None,
) -> tuple[Errors, dict[str, QLayer]]:
    """The errors of a candidate in each layer that it can be in, and those layers.

    sqnr: of the layer's own output, in dB; fisher: damage by the curvature, where there is one
    """
    own = [choice for choice in choices if candidate.name in choice.plans]
    layers: dict[str, QLayer] = {}
    for choice in own:
        layers |= choice.layers(candidate)
    sqnr = lab.outputs(own, layers)
    errors: Errors = {choice.name: {"sqnr": sqnr[choice.name]} for choice in own}
    if curvature is not None:
        for which, choice in enumerate(choices):
            if choice.name in errors:
                rounded = layers[choice.name].dequantize_weight()
                errors[choice.name]["fisher"] = curvature.damage(which, rounded)
    return errors, layers
