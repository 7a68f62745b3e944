# SPDX-License-Identifier: BSD-3-Clause
"""bs.recommend: formats for this model on this machine, each claim with its measurement."""

import math
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from blockscale.calibration.batches import Batches
from blockscale.calibration.errors import Sums
from blockscale.core.recipe import Recipe
from blockscale.core.work import Progress
from blockscale.kernels.hardware import Hardware
from blockscale.kernels.hardware import hardware as this_machine
from blockscale.layers.guards import check_whole, ordinary_tensors
from blockscale.layers.model import without_wrappers
from blockscale.selection.allocation import Budget
from blockscale.selection.candidates import MXFP4, Candidate, WeightOptions, choices, read
from blockscale.selection.choose import LayerChoice, LayerError
from blockscale.selection.errors import Laboratory, float_bytes
from blockscale.selection.objective import Output, TaskLoss
from blockscale.selection.objective import objective as named_objective
from blockscale.selection.recommendation import Advice, Recommendation, advise, claims_of
from blockscale.selection.result import Point, Search
from blockscale.selection.search import POINTS, plain_hardware, search, versions

# Where time counts: weights alone, and integers times integers, which processors are fastest at.
TIMED = ("int8_channel x int8_token", "int8_channel", "nf4:group64:fp16", MXFP4)


def recommend(  # noqa: PLR0913 - the first four are the call, the rest are options
    model: nn.Module,
    budget: Any = 6.0,
    hardware: Hardware | None = None,
    batches: Iterable[Any] | None = None,
    *,
    candidates: Iterable[Any] | None = None,
    objective: str | TaskLoss = "distance",
    output: Output | None = None,
    holdout: Iterable[Any] | None = None,
    skip: Sequence[str] = (),
    state: str | Path | None = None,
    progress: bool | Progress = True,
) -> Recommendation:
    """Which formats to take for a model on this machine under a budget, and what that will cost.

    budget: bits a weight at most; or one of {"size": bytes of all parameters}, {"latency": seconds
        for the first batch}, {"quality": what the objective must still give}, or "size=20MB" and
        the like
    hardware: `bs.hardware()`; None for one now. It has to be this machine's: what is recommended is
        measured here
    batches: as in `bs.search`; None: the rounding errors of weights decide, and neither a latency
        nor a quality can be kept or told
    candidates: as in `bs.search`; None: its own, and those of TIMED for a latency
    objective, output, holdout, skip, state, progress: as there

    Returns the Recommendation, whose `check` measures what it foretold. Raises ValueError where no
    choice keeps to the budget or the hardware is another machine's, and what `bs.search` raises.
    """
    check_whole(model, "bs.recommend")
    bound = Budget.read(budget)
    machine = _check_machine(hardware)
    if batches is None and bound.name in ("latency", "quality"):
        raise ValueError(
            f"a budget of {bound.name} needs batches to measure on: call bs.recommend(…, batches=…)"
        )
    every = read(TIMED if candidates is None and bound.name == "latency" else candidates)
    own = None if batches is None else Batches(batches, 1, "", Progress()).whole()
    with without_wrappers(model) as plain, ordinary_tensors():
        result, _ = choices(plain, every, skip)
        bits = _bits(plain, bound, result, every)
        if own is None:
            outcome = by_weights(plain, every, skip)
        else:
            holdout = None if holdout is None else list(holdout)
            outcome = search(
                plain, own, bits, candidates=every, objective=objective, output=output,
                holdout=holdout, points=POINTS if bound.name == "quality" else (), skip=skip,
                state=state, progress=progress,
            )  # fmt: skip
        what, lab = named_objective(objective, output), None
        if own is not None:
            held_out = own if holdout is None else list(holdout)
            lab = Laboratory(plain, own, held_out, what, Progress())
        advice = advise(plain, outcome, result, bound, bits, lab)
    return _recommendation(advice, machine, what)


def _check_machine(hardware: Hardware | None) -> Hardware:
    """This machine's. Raises ValueError for another one's."""
    here = this_machine()
    if hardware is not None and hardware.processor != here.processor:
        raise ValueError(
            f"hardware describes {hardware.processor!r}, but this machine has {here.processor!r}: "
            "recommendations are measured, so run bs.recommend on the target machine"
        )
    return here if hardware is None else hardware


def _bits(
    model: nn.Module, bound: Budget, results: Sequence[Any], every: Sequence[Candidate]
) -> float:
    """The budget in bits a weight; the largest candidate's where another bound decides.

    Raises ValueError for a size that even empty weights exceed.
    """
    elements = sum(choice.elements for choice in results)
    if bound.name == "bits":
        return bound.value
    if bound.name == "size":
        rest = float_bytes(model) - sum(choice.float_bytes for choice in results)
        if rest >= bound.value:
            raise ValueError(
                f"what stays in float already takes {rest} of {bound.value:.0f} bytes: raise "
                "the size"
            )
        return 8 * (bound.value - rest) / elements
    most = [max(c.bits(e) for e in every if e.name in c.plans) for c in results]
    return sum(most) / elements


def _recommendation(advice: Advice, machine: Hardware, objective: Any) -> Recommendation:
    return Recommendation(
        advice.budget, advice.recipe, advice.foretold, claims_of(advice, machine), advice.formats,
        advice.blocks, advice.rows, advice.search, objective,
    )  # fmt: skip


# Weights by themselves, where there are no batches: the error of rounding is all there is.


def by_weights(model: nn.Module, candidates: Sequence[Candidate], skip: Sequence[str]) -> Search:
    """A search without points, whose layers have the SQNR of their weights, in dB."""
    began = time.monotonic()
    result, rest = choices(model, candidates, skip)
    layers = tuple(_layer(choice, candidates) for choice in result)
    nothing = Point(0.0, math.nan, math.nan, math.nan, Recipe())
    return Search(
        layers, rest, (), (), nothing, tuple(candidates), "sqnr", "weights", "none",
        plain_hardware(), " ".join(sys.argv), versions(), time.monotonic() - began,
    )  # fmt: skip


def _layer(choice: WeightOptions, candidates: Sequence[Candidate]) -> LayerChoice:
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
        tuple(own), dict(choice.refusals),
    )  # fmt: skip
