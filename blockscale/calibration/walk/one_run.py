# SPDX-License-Identifier: BSD-3-Clause
"""A block of the walk that is chosen for and run quantized in one run, where that can be."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import nn

from blockscale.calibration.blocks.lane import Lane
from blockscale.calibration.blocks.stubs import NotOnceError
from blockscale.calibration.choose import statistics_bytes
from blockscale.calibration.session import Session, each_of, has_rows, static_parts
from blockscale.calibration.walk.looking import Looker
from blockscale.calibration.walk.once import Once, stages
from blockscale.calibration.walk.weights import Weights
from blockscale.core.layout import of_convolution
from blockscale.core.work.progress import Progress
from blockscale.layers.plan import Plan

_MOST = 512  # batches, each of which is a thread
_RUNS = 2  # that a block takes otherwise, of which progress is told


class Walking(Protocol):
    """What a walk knows."""

    session: Session
    main: Lane
    looker: Looker
    weights: Weights
    budget: float
    progress: Progress


def in_one_run(walk: Walking, i: int, *, keep: bool) -> bool:
    """Choose block i, and run it quantized; False, with a note in the ledger, where that cannot be.

    keep: what it gives, for the blocks after it
    """
    plans, counted = walk.main.blocks[i].plans, walk.looker.counted.layers
    before = set(counted)
    try:
        _run(walk, i, plans, keep=keep)
    except NotOnceError as error:
        for name in counted.keys() - before:
            del counted[name]
        walk.session.details[plans[0].name].append(f"its block not in one run: {error}")
        return False
    return True


def _run(walk: Walking, i: int, plans: Sequence[Plan], *, keep: bool) -> None:
    session, lane, count = walk.session, walk.main, len(walk.main.batches)
    _check(plans, count, walk.budget)
    found = stages(plans, lambda: lane.run_one(i, 0, keep=False), walk.budget / count)
    weighing, collectors = session.weighing(plans)
    tell = {
        p.name: session.without_padding(p, each_of(walk.looker.counter(p), weighing[p.name]))
        for p in plans
    }

    def run_one(b: int) -> None:
        lane.run_one(i, b, keep=keep)
        walk.progress.advance(amount=_RUNS)

    def choose(stage: Sequence[Plan]) -> Mapping[str, nn.Module]:
        own = {plan.name: collectors[plan.name] for plan in stage}
        walk.weights.choose(stage, session.weighed(own))
        return walk.weights.stand_ins(stage)

    lane.trust(i)  # what it gives from now on is what the quantized block does
    Once(session.model, found, tell).run(count, run_one, choose)


def _check(plans: Sequence[Plan], count: int, budget: float) -> None:
    """Raise NotOnceError for what cannot be known before a layer has run."""
    if any(True for plan in plans for _ in static_parts(plan)):
        raise NotOnceError("static scales need a run of their own")
    if not all(has_rows(plan) and not of_convolution(plan.layout) for plan in plans):
        raise NotOnceError("a layer does not compute products of rows")
    if count > _MOST:
        raise NotOnceError(f"more than {_MOST} batches")
    if sum(map(statistics_bytes, plans)) > budget:
        raise NotOnceError("the statistics of its layers are more than the budget")
