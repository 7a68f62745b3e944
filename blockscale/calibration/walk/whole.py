# SPDX-License-Identifier: BSD-3-Clause
"""After the walk: codes of all blocks are chosen once more, by what the whole model gives."""

from collections.abc import Sequence
from typing import Any

from blockscale.calibration.algorithms.learned.stage import first_given
from blockscale.calibration.batches import device_of, inference
from blockscale.calibration.blocks.task import BlockTask, Call
from blockscale.calibration.session import Session
from blockscale.calibration.walk.options import Options
from blockscale.layers.guards.sample import arguments
from blockscale.layers.supplied import fitting


def learns_whole(algorithm: Any, options: Options) -> bool:
    """Whether `choose_whole` is to follow the walk; asked before it.

    Raises ValueError for weights that are read from disk block by block: all are needed at once.
    """
    if not getattr(algorithm, "whole", False):
        return False
    if options.settler is not None:
        raise ValueError(
            f"{algorithm.name}: whole needs the whole model in memory, and source= reads one "
            "block at a time: leave source out, or set whole=0"
        )
    return True


def choose_whole(
    session: Session, algorithm: Any, batches: Sequence[Any], options: Options
) -> None:
    """Let the algorithm's `quantize_model` begin with the codes that there are.

    Layers whose codes were not chosen stay float in what it sees.
    """
    start = {
        plan.name: q
        for plan in session.layers
        if plan.owns_weight and (q := session.places[plan.name].weight) is not None
    }
    if not start:
        return
    model, device = session.model, device_of(session.model)
    own = [plan for plan in session.layers if plan.name in start]
    with inference(model):
        calls = [Call(*arguments(batch, device)) for batch in batches]
        given: list[Any] = [first_given(model(*call.args, **call.kwargs)) for call in calls]
        targets = [session.padding.blank(y, b) for y, b in zip(given, batches, strict=True)]
        task = BlockTask("the model", model, own, session.places, calls, targets, seed=options.seed)
        made = algorithm.quantize_model(task, start)
    for plan in own:
        q, notes = made[plan.name]
        if q is not start[plan.name]:
            session.details[plan.name].append("and by the whole model")
        session.places[plan.name].weight = fitting(plan, q)
        session.notes[plan.name] += notes
