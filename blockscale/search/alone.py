"""Weights by themselves, where there are no batches: the error of rounding is all there is."""

import math
import sys
import time
from collections.abc import Sequence

from torch import nn

from blockscale.calibrate.errors import Sums
from blockscale.core.recipe import Recipe
from blockscale.search.candidates import Candidate
from blockscale.search.choices import Choice, choices
from blockscale.search.choose import LayerChoice, LayerError
from blockscale.search.result import Point, Search
from blockscale.search.search import plain_hardware, versions


def by_weights(model: nn.Module, candidates: Sequence[Candidate], skip: Sequence[str]) -> Search:
    """A search without points, whose layers have the SQNR of their weights, in dB."""
    began = time.monotonic()
    found, left = choices(model, candidates, skip)
    layers = tuple(_layer(choice, candidates) for choice in found)
    nothing = Point(0.0, math.nan, math.nan, math.nan, Recipe())
    return Search(
        layers, left, (), (), nothing, tuple(candidates), "sqnr", "weights", "none",
        plain_hardware(), " ".join(sys.argv), versions(), time.monotonic() - began,
    )  # fmt: skip


def _layer(choice: Choice, candidates: Sequence[Candidate]) -> LayerChoice:
    own = []
    for candidate in candidates:
        if candidate.name in choice.plans:
            layer = next(iter(choice.layers(candidate).values()))
            sums = Sums()
            sums.add(choice.parameter, layer.dequantize_weight())
            bits = choice.bits(candidate) / choice.elements
            own.append(LayerError(candidate.name, bits, sums.result().sqnr))
    return LayerChoice(
        choice.names, choice.kind, choice.shape, choice.elements, 8 * choice.float_bytes,
        tuple(own), dict(choice.refused),
    )  # fmt: skip
