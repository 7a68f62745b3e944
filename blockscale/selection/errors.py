# SPDX-License-Identifier: BSD-3-Clause
"""What each candidate does to each layer, and to the model: measured."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from blockscale.calibration.batches import call
from blockscale.calibration.errors import Sums
from blockscale.calibration.hooks import Callback, watch
from blockscale.core.work.progress import Progress
from blockscale.layers.layer import QLayer
from blockscale.layers.model.swap import swap
from blockscale.selection.candidates import Candidate
from blockscale.selection.choices import Choice
from blockscale.selection.curvature import Curvature
from blockscale.selection.objective import Measured, Objective

Errors = dict[str, dict[str, float]]  # {choice: {"sqnr": …, "fisher": …, "loss": …}}


class Laboratory:
    """A float model, the batches that it is measured on, and what it gives for them.

    held: batches on which the quality of whole models is measured
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Sequence[Any],
        held: Sequence[Any],
        objective: Objective,
        progress: Progress,
    ):
        self.model, self.batches, self.held = model, batches, held
        self.objective, self.progress = objective, progress
        self._references: dict[int, Any] = {}  # id of a batch -> what counts of its output

    def reference(self, batch: Any) -> Any:
        """What counts of the float model's output."""
        if id(batch) not in self._references:
            self._references[id(batch)] = self.objective.of(call(self.model, batch), batch)
        return self._references[id(batch)]

    def remember(self) -> None:
        """Run the float model on every batch, before anything is put into it."""
        for batch in (*self.batches, *self.held):
            self.reference(batch)

    def measure(self, layers: Mapping[str, nn.Module], batches: Sequence[Any]) -> Measured:
        """The model with these layers in it, which are taken out again."""
        total = Measured()
        with placed(self.model, layers):
            for batch in batches:
                given = self.objective.of(call(self.model, batch), batch)
                total += self.objective.measure(self.reference(batch), given, batch)
                self.progress.advance()
        return total

    def outputs(self, choices: Sequence[Choice], made: Mapping[str, QLayer]) -> dict[str, float]:
        """{choice: SQNR in dB of its layers' outputs, given the float model's inputs}."""
        sums = {choice.name: Sums() for choice in choices}
        callbacks: dict[nn.Module, Callback] = {}
        for choice in choices:
            for module, name in zip(choice.modules, choice.firsts, strict=True):
                callbacks[module] = _comparing(made[name], sums[choice.name])
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
def placed(model: nn.Module, layers: Mapping[str, nn.Module]) -> Iterator[None]:
    """These layers in the model, by name; what was there comes back, whatever happens."""
    old = swap(model, layers)
    try:
        yield
    finally:
        swap(model, old)


def errors_of(
    candidate: Candidate, choices: Sequence[Choice], lab: Laboratory, curvature: Curvature | None
) -> tuple[Errors, dict[str, QLayer]]:
    """The errors of a candidate in each layer that it can be in, and those layers.

    sqnr: of the layer's own output, in dB; fisher: damage by the curvature, where there is one
    """
    own = [choice for choice in choices if candidate.name in choice.plans]
    made: dict[str, QLayer] = {}
    for choice in own:
        made |= choice.layers(candidate)
    sqnr = lab.outputs(own, made)
    found: Errors = {choice.name: {"sqnr": sqnr[choice.name]} for choice in own}
    if curvature is not None:
        for which, choice in enumerate(choices):
            if choice.name in found:
                rounded = made[choice.name].dequantize_weight()
                found[choice.name]["fisher"] = curvature.damage(which, rounded)
    return found, made
