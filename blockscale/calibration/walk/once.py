# SPDX-License-Identifier: BSD-3-Clause
"""A block that is run once: it halts before its layers until they are chosen.

All batches are in the block at the same time, each in a thread of its own, of which one runs at a
time. Each halts before the first layer whose weight is not chosen. When all have, the layers that
are called with what is there are chosen, and the batches go on through them, quantized. So every
layer sees what the quantized layers before it leave, and is run once for each batch.
"""

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from blockscale.calibration.blocks.calls import version
from blockscale.calibration.blocks.find import NotOnceError
from blockscale.calibration.blocks.lane import Lane
from blockscale.calibration.choose import statistics_bytes
from blockscale.calibration.input_stats import Callback, watch
from blockscale.calibration.session import Session, each_of, has_rows, static_parts
from blockscale.calibration.walk.statistics import Looker
from blockscale.calibration.walk.weights import Weights, standing_in
from blockscale.core.pack import of_convolution
from blockscale.core.work import Progress
from blockscale.layers.plan import Plan

Choose = Callable[[Sequence[Plan]], Mapping[str, nn.Module]]  # layers -> what stands in for them


class _StoppedError(BaseException):
    """A batch is not to go on: it ends its thread, and no model catches it."""


def stages(plans: Sequence[Plan], run: Callable[[], None], most: float) -> list[list[Plan]]:
    """The layers of a block in the order of their calls, those with one input together.

    run: one batch through the float block; most: bytes that its layers may take and give.
    Raises NotOnceError for layers that are called twice or not at all, or tied ones; and where the
    bytes are more.
    """
    seen: list[tuple[Plan, Tensor, int]] = []
    held: dict[int, Tensor] = {}

    def told(plan: Plan) -> Callback:
        def add(x: Tensor, y: Any) -> None:
            seen.append((plan, x, version(x)))
            held.update({id(t): t for t in (x, y) if isinstance(t, Tensor)})

        return add

    with watch({plan.module: told(plan) for plan in plans}):
        run()
    if sorted(p.name for p, _, _ in seen) != sorted(p.name for p in plans):
        raise NotOnceError("a layer is called twice or not at all")
    if any(plan.tied or not plan.owns_weight for plan in plans):
        raise NotOnceError("a layer shares its weight")
    if (needed := sum(t.nbytes for t in held.values())) > most:
        raise NotOnceError(f"its layers need {needed:.2g} bytes for a batch, more than the budget")
    found: list[list[Plan]] = []
    last: tuple[int, int] | None = None
    for plan, x, changed in seen:
        if last != (id(x), changed):
            found.append([])
        found[-1].append(plan)
        last = id(x), changed
    return found


class Once:
    """One run of a block, stage by stage.

    model: in which layers stand; tell: what is to be known of each layer's input
    """

    def __init__(
        self, model: nn.Module, found: Sequence[Sequence[Plan]], tell: Mapping[str, Callback]
    ):
        self._model, self._stages, self._tell = model, found, tell
        self._done = 0  # stages that are chosen
        self._batches: list[_Batch] = []
        self._own = threading.local()

    def run(self, count: int, run_one: Callable[[int], None], choose: Choose) -> None:
        """All batches. choose: of a stage, once all batches are there.

        Raises what a batch raised, or NotOnceError where batches come to different layers.
        """
        gates: dict[str, nn.Module] = {}
        for number, stage in enumerate(self._stages):
            for place, plan in enumerate(stage):
                gates |= dict.fromkeys(plan.names, _Gate(self, plan, number, place))
        with standing_in(self._model, gates):  # type: ignore[arg-type] # layers of any kind
            try:
                for b in range(count):
                    self._batches.append(_Batch(self._own, lambda b=b: run_one(b)))  # type: ignore[misc]
                    self._batches[-1].go_on()
                self._choose_all(gates, choose)
            finally:
                for batch in self._batches:
                    batch.stop()

    def _choose_all(self, gates: Mapping[str, Any], choose: Choose) -> None:
        for number, stage in enumerate(self._stages):
            if any(batch.waits_for != number for batch in self._batches):
                raise NotOnceError("batches call its layers in different orders")
            for name, layer in choose(stage).items():
                gates[name].put(layer)
            self._done = number + 1
            for batch in self._batches:
                batch.go_on()
        if any(batch.waits_for is not None for batch in self._batches):
            raise NotOnceError("batches call its layers in different orders")

    def come(self, plan: Plan, stage: int, place: int, x: Tensor) -> None:
        """A batch comes to a layer; it goes on when that is chosen."""
        batch: _Batch = self._own.batch
        if stage >= self._done:
            if place:
                raise NotOnceError("batches call its layers in different orders")
            for each in self._stages[stage]:
                self._tell[each.name](x, None)
            batch.input = weakref.ref(x), version(x)
            batch.halt(stage)
        elif batch.input[0]() is not x or batch.input[1] != version(x) or stage != self._done - 1:
            raise NotOnceError(f"{plan.name} has an input of its own in some batches")


class _Batch:
    """A batch on its way, in a thread that runs only while `go_on` waits for it."""

    def __init__(self, own: threading.local, run: Callable[[], None]):
        self.waits_for: int | None = None  # the stage; None before and after
        self.input: tuple[Callable[[], Tensor | None], int] = (lambda: None, 0)
        self._own, self._run = own, run
        self._mine, self._theirs = threading.Semaphore(0), threading.Semaphore(0)
        self._error: BaseException | None = None
        self._stopped = self._ended = False
        self._threads = torch.get_num_threads()
        self._thread = threading.Thread(target=self._body, daemon=True)
        self._thread.start()

    def go_on(self) -> None:
        """Let it run to where it halts next, or to its end; raises what it raised."""
        if self._ended:
            return
        self.waits_for = None
        self._mine.release()
        self._theirs.acquire()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def halt(self, stage: int) -> None:
        """In its own thread: wait to be told to go on."""
        self.waits_for = stage
        self._theirs.release()
        self._mine.acquire()
        if self._stopped:
            raise _StoppedError

    def stop(self) -> None:
        """End its thread."""
        self._stopped = True
        self._mine.release()
        self._thread.join()

    def _body(self) -> None:
        self._mine.acquire()
        try:
            if not self._stopped:
                self._own.batch = self
                torch.set_num_threads(self._threads)  # MKL's are those of a thread
                with torch.no_grad():
                    self._run()
        except _StoppedError:
            pass
        except BaseException as error:
            self._error = error
        self._ended = True
        self._theirs.release()


class _Gate(nn.Module):
    """Stands in a layer's place: its calls halt until it is chosen. All else is the layer's."""

    def __init__(self, once: Once, plan: Plan, stage: int, place: int):
        super().__init__()
        self.__dict__["_at"] = once, plan, stage, place
        self.__dict__["_layer"] = plan.module

    def put(self, layer: nn.Module) -> None:
        """What the calls go to from now on."""
        layer.training = False
        self.__dict__["_layer"] = layer

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        once, plan, stage, place = self.__dict__["_at"]
        once.come(plan, stage, place, args[0] if args else next(iter(kwargs.values())))
        return self.__dict__["_layer"](*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_layer"], name)


# A block of the walk that is chosen for and run quantized in one run, where that can be.

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
        walk.session.details[plans[0].name].append(f"its block needs several runs: {error}")
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
