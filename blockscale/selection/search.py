# SPDX-License-Identifier: BSD-3-Clause
"""bs.search: a recipe under a budget of bits, from errors that are measured."""

import json
import platform
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from blockscale.calibration.batches import Batches, inference, listener
from blockscale.calibration.walk.resume import digests_of, run_identity
from blockscale.core.work import Progress
from blockscale.kernels.hardware import hardware
from blockscale.layers.guards import check_whole, ordinary_tensors
from blockscale.layers.model import without_wrappers
from blockscale.selection.candidates import Candidate, WeightOptions, choices, read
from blockscale.selection.errors import Laboratory
from blockscale.selection.objective import Objective, Output, TaskLoss
from blockscale.selection.objective import objective as named_objective
from blockscale.selection.result import Search, SearchState
from blockscale.selection.steps import Request, run_search

SCORES = ("fisher", "output", "sqnr")
POINTS = (3.0, 3.5, 4.0, 4.5, 5.0, 5.5, 6.0, 6.5, 7.0, 7.5, 8.0)


def search(  # noqa: PLR0913 - the first three are the call, the rest are options
    model: nn.Module,
    batches: Iterable[Any],
    budget: float = 4.5,
    *,
    candidates: Iterable[Any] | None = None,
    objective: str | TaskLoss = "distance",
    output: Output | None = None,
    score: str | None = None,
    holdout: Iterable[Any] | None = None,
    points: Sequence[float] = POINTS,
    latency: float | None = None,
    skip: Sequence[str] = (),
    state: str | Path | None = None,
    progress: bool | Progress = True,
    seed: int = 0,
) -> Search:
    """Which layer gets which format, so that the model loses least within a budget of bits.

    Every layer is measured in every candidate; the choice is an integer program, solved exactly
    (extra `search`). The model stays as it is: `bs.quantize_(model, found.recipe)` changes it.

    batches: as in `bs.calibrate`; all of them are held, and gone through several times
    budget: bits a weight on average over all layers that can be quantized, scales included
    candidates: names or spellings, "WEIGHT x INPUT" where inputs are quantized; None: those of
        blockscale.selection.candidates
    objective: what counts: "distance" of the output's rows, "kl" of its logits, or a function
        (output, batch) -> loss
    output: (output, batch) -> what of it counts; None: every tensor of floats in it
    score: what is added up over layers: "fisher" (None, for weights), squared errors of a weight
        times the mean squared gradients; "output" (None, with inputs), the damage measured with
        one layer quantized at a time: a run for each layer and candidate; "sqnr", noise to signal
        of layers' own outputs
    holdout: batches on which the points' quality is measured; None: `batches`
    points: budgets of the front; one that no choice can keep is left out
    latency: seconds that the layers may take for the first batch, here; the layers are then timed
    skip: patterns of layers to leave in float
    state: a file of what was measured: a search that was stopped goes on
    progress: a bar on stderr if that is a terminal; False for none; or a Progress that listens
    seed: of the random numbers behind "fisher"

    Returns the Search. Raises ValueError and TypeError for arguments that do not fit, StateError
    (a ValueError) for another search's state, RuntimeError without scipy. Whatever is raised, also
    by Ctrl-C, the model is as it was.
    """
    began = time.monotonic()
    check_whole(model, "bs.search")
    every = read(candidates)
    score = _score(score, every)
    own = _batches(batches)
    held_out = own if holdout is None else _batches(holdout)
    request = Request(every, score, _budget(budget), tuple(map(_budget, points)), latency, seed)
    what = named_objective(objective, output)
    info = listener(progress, "searching", "runs")
    try:
        with without_wrappers(model) as plain, ordinary_tensors():
            result, rest = choices(plain, every, skip)
            lab = Laboratory(plain, own, held_out, what, info)
            search_state = SearchState(state, _identity(result, request, what, (own, held_out)))
            with inference(plain):
                layers, uniform, front, point = run_search(lab, result, request, search_state)
    finally:
        info.close()
    return Search(
        layers, rest, front, uniform, point, every, score, what.name, what.quality_name,
        plain_hardware(), " ".join(sys.argv), versions(), time.monotonic() - began,
    )  # fmt: skip


def _score(score: str | None, candidates: Sequence[Candidate]) -> str:
    """The score, by default "fisher" for weights. Raises ValueError."""
    inputs = [each.name for each in candidates if each.scheme.input is not None]
    if score is None:
        return "output" if inputs else "fisher"
    if score not in SCORES:
        raise ValueError(f"unknown score {score!r}; choose from {', '.join(SCORES)}")
    if score == "fisher" and inputs:
        raise ValueError(
            f"score='fisher' measures errors of weights only, and {inputs[0]!r} quantizes "
            "inputs: use score='output'"
        )
    return score


def _budget(budget: float) -> float:
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 < budget < 64:
        raise ValueError(
            f"the budget must be a number of bits per weight, such as 4.5, got {budget!r}"
        )
    return float(budget)


def _batches(batches: Iterable[Any]) -> list[Any]:
    return Batches(batches, 1, "", Progress()).whole()


def _identity(
    options: Sequence[WeightOptions],
    request: Request,
    what: Objective,
    batches: tuple[Sequence[Any], Sequence[Any]],
) -> str:
    """What tells a search from others, its budgets left out."""
    plans = [plan for choice in options for own in choice.plans.values() for plan in own]
    methods = [what.name, *what.functions, request.score, request.seed]
    every = digests_of([*batches[0], *batches[1]])
    return run_identity(plans, methods, every, len(batches[0]))


def plain_hardware() -> dict[str, Any]:
    """`bs.hardware()` as JSON gives it back."""
    return dict(json.loads(json.dumps(asdict(hardware()))))


def versions() -> dict[str, str]:
    """{package: its version} of what figures depend on."""
    own = sys.modules["blockscale"].__version__  # loaded: this module is below it
    return {"python": platform.python_version(), "torch": torch.__version__, "blockscale": own}
