# SPDX-License-Identifier: BSD-3-Clause
"""The schedule of a calibration: blocks one after another, or passes over the whole model."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from blockscale.calibration.algorithms.learned.stage import first_given
from blockscale.calibration.batches import device_of, inference
from blockscale.calibration.block_calls import BlockCall, BlockTask
from blockscale.calibration.choose import share
from blockscale.calibration.find_blocks import LayerBlock, NotWalkableError
from blockscale.calibration.session import Session
from blockscale.calibration.walk.walk import Walk
from blockscale.calibration.walk.weights import Options
from blockscale.layers.assembly import fitting
from blockscale.layers.guards import arguments
from blockscale.layers.plan import Plan
from blockscale.ops.tensor import QTensor

# Whether a model can be walked block by block, and the walk over all chains that can.


def walk_chains(
    start: Callable[[], Session],
    blocks: Sequence[LayerBlock],
    batches: Sequence[Any],
    methods: tuple[Any, Any, Any],
    options: Options,
) -> tuple[Session | None, list[str]]:
    """A session in which everything is chosen, None if no chain can be walked; and why not.

    start: a session in which nothing is. A chain that cannot be walked is looked at as the layers
    around the blocks are, which the ledger says.
    """
    reasons: list[str] = []
    results = list(blocks)
    while results:
        session = start()
        walk = Walk(session, results, batches, methods, options)
        try:
            with inference(session.model):
                walk.run()
        except NotWalkableError as error:
            reasons.append(
                f"{error.chain or 'the model'} cannot be calibrated block by block: {error}"
            )
            results = [block for block in results if block.chain != error.chain]
            continue
        return session, reasons
    return None, reasons


# After the walk: codes of all blocks are chosen once more, by what the whole model gives.


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
        calls = [BlockCall(*arguments(batch, device)) for batch in batches]
        targets: list[Any] = []

        def one(b: int) -> None:
            value: Any = first_given(model(*calls[b].args, **calls[b].kwargs))
            targets.append(session.padding.blank(value, batches[b]))

        session.ranks.each(len(calls), one)
        task = BlockTask(
            "the model", model, own, session.places, calls, targets,
            seed=options.seed, ranks=session.ranks,
        )  # fmt: skip
        result = algorithm.quantize_model(task, start)
    share(session, own, partial(_take, session, own, start, result))


def _take(
    session: Session,
    plans: Sequence[Plan],
    start: Mapping[str, QTensor],
    stacks: Mapping[str, tuple[QTensor, list[str]]],
) -> None:
    for plan in plans:
        q, notes = stacks[plan.name]
        if q is not start[plan.name]:
            session.details[plan.name].append("then refined by the output of the whole model")
        session.places[plan.name].weight = fitting(plan, q)
        session.notes[plan.name] += notes
