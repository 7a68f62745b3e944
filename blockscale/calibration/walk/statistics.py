# SPDX-License-Identifier: BSD-3-Clause
"""Statistics of a walk: of the inputs of layers, and of their drift from the float model."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from blockscale.calibration.batches import Coverage
from blockscale.calibration.choose import groups, share, statistics_bytes
from blockscale.calibration.dealing import width
from blockscale.calibration.input_stats import (
    Callback,
    DriftCollector,
    InputStats,
    Size,
    rows_of,
    watch,
)
from blockscale.calibration.mixing import match_rows, place_of
from blockscale.calibration.observers import Spec
from blockscale.calibration.session import (
    Session,
    each_of,
    nbytes_of,
    static_parts,
)
from blockscale.layers.plan import Plan

# What layers are given in the float model, beside what the quantized layers before them leave.


class FloatInputs:
    """Gathers the drift of layers' inputs, batch by batch: the float model runs first and its
    inputs are held, then the model as it is quantized so far runs on the same batch."""

    def __init__(self, session: Session):
        self._session = session
        self._float_runs = False
        self._collectors: dict[str, DriftCollector] = {}
        self._adds: dict[str, Callable[..., None]] = {}
        self._float_inputs: dict[str, list[Tensor]] = {}
        self._unlike: dict[str, int] = {}

    def begin(self, plans: Sequence[Plan]) -> None:
        """Gather for these layers from now on."""
        self._collectors = {p.name: DriftCollector(width(p), p.parameter.device) for p in plans}
        self._adds = {p.name: self._session.ranks.at_owner(p.name, self._adder(p)) for p in plans}
        self._float_inputs = {plan.name: [] for plan in plans}
        self._unlike = dict.fromkeys(self._float_inputs, 0)

    @contextmanager
    def of_the_float_model(self) -> Iterator[None]:
        """As long as this lasts, the float model runs on one batch. Nobody else is told of it."""
        for inputs in self._float_inputs.values():
            inputs.clear()
        self._float_runs = True
        try:
            yield
        finally:
            self._float_runs = False

    def beside(self, plan: Plan, callback: Callback | None) -> Callback | None:
        """The callback of a layer that gathers, and tells `told` what the quantized model does."""
        gathers = plan.name in self._collectors
        if callback is None and not gathers:
            return None

        def tell(x: Tensor, y: Any) -> None:
            if self._float_runs:
                if gathers:  # cloned, as the model may write into it
                    self._float_inputs[plan.name].append(x.detach().clone())
                return
            if gathers:
                self._add(plan, x, y)
            if callback is not None:
                callback(x, y)

        return tell

    def _add(self, plan: Plan, x: Tensor, y: Any) -> None:
        """A call's input, and that of the same call in the float model. Inputs that are as far from
        each other as from zero are of other rows. An expert may get other tokens than in the float
        model: those that both models sent to it are compared."""
        inputs, x = self._float_inputs[plan.name], x.detach()
        target = inputs.pop(0) if inputs else None
        if target is not None and place_of(plan) is not None:
            x, target = match_rows(x, target)
        if target is None or target.shape != x.shape or _apart(x, target):
            self._unlike[plan.name] += 1
            return
        size = tuple(y.shape) if isinstance(y, Tensor) else ()
        self._adds[plan.name](x, target, size)

    def _adder(self, plan: Plan) -> Callable[[Tensor, Tensor, Size], None]:
        """What adds the inputs of a call in both models."""
        before, into = self._session.places[plan.name].before, self._collectors[plan.name]

        def add(x: Tensor, tensor: Tensor, size: Size) -> None:
            both = (rows_of(plan, each, before, size) for each in (x, tensor))
            for quantized, of_float in zip(*both, strict=True):
                into.add(quantized, of_float)

        return add

    def result(self) -> dict[str, Tensor]:
        """The drifts of those that saw any input, Xq^T (Xf - Xq) / rows [k, k] float64."""
        every = self._session.ranks.together(lambda: self._unlike)
        for name in self._unlike:
            if count := sum(unlike[name] for unlike in every):
                note = (
                    f"{count} of its calls have different inputs in the float model, and are "
                    "left out"
                )
                self._session.details[name].append(f"drift: {note}")
        data = {name: each.result() for name, each in self._collectors.items()}
        self._collectors, self._adds, self._float_inputs = {}, {}, {}
        return {name: drift for name, drift in data.items() if drift is not None}


def _apart(x: Tensor, tensor: Tensor) -> bool:
    far = (tensor.float() - x.float()).square().sum()
    return bool(far > tensor.float().square().sum())  # False where either is NaN


# What is looked at while a block runs over all batches: statistics, observers, coverage.

Run = Callable[[], None]  # all batches, once
_NEVER = 2**62


class Looker:
    """Runs that tell a session what its layers see; the first one of each layer is counted."""

    def __init__(self, session: Session, observer: Spec, budget: float):
        self.session, self.observer, self.budget = session, observer, budget
        self.counts = session.coverage = Coverage()
        self.first: dict[str, tuple[int, int]] = {}  # of layers' first calls: batch, and place

    def look(
        self,
        plans: Sequence[Plan],
        callbacks: Mapping[str, Callback],
        run: Run,
        floats: FloatInputs | None = None,
    ) -> None:
        """One run. plans: all that are called in it; floats: that gathers in it, too."""
        counters, new = {}, [p.name for p in plans if p.name not in self.counts.layers]
        for plan in plans:
            value = callbacks.get(plan.name)
            if plan.name not in self.counts.layers:
                value = each_of(self.counter(plan), value)
            if floats is not None:
                value = floats.beside(plan, value)
            if value is not None:
                counters[plan.module] = self.session.without_padding(plan, value)
        with watch(counters):
            run()
        if new:
            self._merge(new)

    def _merge(self, names: Sequence[str]) -> None:
        """What was counted of these layers in all processes."""
        self.session.merge(self.counts, names)
        for first in self.session.ranks.together(lambda: self.first):
            for name in first.keys() & set(names):
                self.first[name] = min(first[name], self.first.get(name, first[name]))

    def look_once(self, plans: Sequence[Plan], run: Run) -> None:
        """One run if these layers were in none yet."""
        if not all(plan.name in self.counts.layers for plan in plans):
            self.look(plans, {}, run)

    def take_back_unseen(self, plans: Sequence[Plan]) -> list[Plan]:
        """Those of these layers that saw nothing so far; they are counted again."""
        unseen = [plan for plan in plans if self.counts.layers[plan.name].calls == 0]
        for plan in unseen:
            del self.counts.layers[plan.name]
        return unseen

    def statistics(
        self, plans: Sequence[Plan], members: Sequence[Plan], run: Run, *, gram: bool
    ) -> Iterator[tuple[list[Plan], dict[str, InputStats]]]:
        """What is known of the inputs of `members`, in groups that the budget allows. gram: whether
        their gram matrices are."""
        for group in groups(members, statistics_bytes, self.budget):
            callbacks, collectors = self.session.collect(group, gram=gram)
            self.look(plans, callbacks, run)
            yield group, self.session.results_of(collectors)

    def observe(
        self,
        plans: Sequence[Plan],
        gram_plans: Iterable[Plan],
        run: Run,
        floats: FloatInputs | None = None,
    ) -> dict[str, Tensor]:
        """Static scales of all `plans` and the grams of `gram_plans`, in one run if that fits; with
        `floats` the session has the drifts of `gram_plans` then."""
        items: list[tuple[Plan, str]] = [(p, part) for p in plans for part in static_parts(p)]
        items += [(plan, "gram") for plan in gram_plans]
        grams: dict[str, Tensor] = {}
        for group in groups(items, self._nbytes, self.budget / (1 if floats is None else 2)):
            targets = [(plan, part) for plan, part in group if part != "gram"]
            learning, observers = self.session.observing(targets, self.observer)
            some = [plan for plan, part in group if part == "gram"]
            sums = self.session.gram_sums(some)
            both = dict(learning)
            for name, callback in sums.callbacks.items():
                both[name] = each_of(callback, learning.get(name))
            if floats is not None:
                floats.begin(some)
            self.look(plans, both, run, floats)
            observed_plans = [plan for plan, _ in targets]
            if observers:
                share(self.session, observed_plans, lambda: self.session.use_observers(observers))  # noqa: B023
            grams |= self.session.finish_grams(sums)
            if floats is not None:
                drifts = self.session.mixing.drifts(floats.result())
                self.session.drifts |= self.session.spread_matrices(drifts, some)
        return grams

    def tell_unseen(self, plans: Sequence[Plan], batches: int) -> None:
        """Note which of these layers saw no data. Raises SkippedError if they may not."""
        self.counts.batches = batches
        if self.session.strict:
            self.counts.raise_if_unseen()
        unseen = set(self.counts.unseen)
        for plan in plans:
            self.session.tokens[plan.name] = self.counts.layers[plan.name].rows
            if plan.name in unseen:
                self.session.notes[plan.name].append(f"saw no data in {batches} batches")

    def in_order(self, plans: Sequence[Plan]) -> list[Plan]:
        """As they were called first."""
        return sorted(plans, key=lambda plan: self.first.get(plan.name, (_NEVER, 0)))

    def _nbytes(self, item: tuple[Plan, str]) -> float:
        plan, part = item
        if part == "gram":
            return statistics_bytes(plan)
        return nbytes_of(plan, part, self.observer)

    def counter(self, plan: Plan) -> Callback:
        """What counts a layer's calls, and which layer is called first."""
        count = self.counts.counter(plan)

        def call(x: Tensor, y: Any) -> None:
            ranks = self.session.ranks
            self.first.setdefault(plan.name, (ranks.number(ranks.now), len(self.first)))
            count(x, y)

        return call
