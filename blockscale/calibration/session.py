# SPDX-License-Identifier: BSD-3-Clause
"""A calibration in progress: what is known and chosen so far, while the model is as it was."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from blockscale.calibration.batches import Batches, Coverage, DataCounts
from blockscale.calibration.dealing import Effort, effort_of_codes, width
from blockscale.calibration.input_stats import (
    Callback,
    InputStats,
    InputStatsCollector,
    Size,
    rows_of,
    seen_by,
    watch,
    with_size,
)
from blockscale.calibration.mixing import Mixing
from blockscale.calibration.observers import Observer, Spec, make
from blockscale.calibration.padding import Neighbours, Padding
from blockscale.calibration.ranks import ALONE, Ranks
from blockscale.calibration.weighing import GramSums, effort_of_gram
from blockscale.core import reference
from blockscale.core.arithmetic.precision import subnormals_kept
from blockscale.core.block import read_block
from blockscale.core.format import Format
from blockscale.core.pack import of_convolution
from blockscale.core.scale import FLOAT_SCALES
from blockscale.layers.assembly import supplied
from blockscale.layers.plan import Decision, Plan
from blockscale.layers.saturation import lost_signs
from blockscale.layers.store import QInput

if TYPE_CHECKING:
    from blockscale.core.ledger import Entry
    from blockscale.layers.layer import QLayer
    from blockscale.layers.store import QWeight


Observing = tuple[Plan, str, Observer]  # a layer, its "input" or "output", and who looks


class Session:
    """The layers to be quantized, what was chosen for them (`places`), and the data."""

    def __init__(
        self,
        model: nn.Module,
        plans: Sequence[Decision],
        data: Batches | None,
        *,
        strict: bool,
        by_observers: bool = False,
        ranks: Ranks = ALONE,
    ):
        """by_observers: outer scales that have to be supplied come from observers; ranks: who takes
        part."""
        self.ranks = ranks
        self.model, self._data, self.strict = model, data, strict
        self.padding = Padding()
        self.mixing = Mixing()
        self.tokens: dict[str, int] = {}  # rows that each layer saw
        self.alike: dict[str, float] = {}  # the part of them that are like the row before
        self.layers = [plan for plan in plans if isinstance(plan, Plan)]
        self.by_name = {plan.name: plan for plan in self.layers}
        self.places = supplied(plans, by_observers=by_observers)
        self.coverage: Coverage | None = None
        self.details: dict[str, list[str]] = {
            plan.name: list(plan.choice_notes) for plan in self.layers
        }
        self.notes: dict[str, list[str]] = {plan.name: [] for plan in self.layers}
        self.drifts: dict[str, Tensor] = {}  # of layers whose weights are chosen next
        self._parts: dict[str, int] = {}  # how many the codes of a layer are chosen in
        self.ready: dict[str, tuple[QLayer, Entry]] = {}  # layers whose floats are gone again
        self.weights: dict[str, QWeight] = {}  # the same for parameters of no layer
        self.deal(self.layers)

    def deal(self, plans: Sequence[Plan], algorithm: object = None) -> None:
        """Deal out to processes what it takes to gather and to choose for layers; these are chosen
        for at the same time, by a weight algorithm in parts. Experts whose statistics mix have one
        owner."""
        sets, costs, gathers = self.mixing.sets, dict[str, Effort](), dict[str, Effort]()
        for plan in plans:
            name, cost = sets.get(plan.name, plan.name), Effort(1.0)
            if has_rows(plan):
                cost, gathers[name] = effort_of_codes(plan, algorithm), effort_of_gram(plan)
            if plan.name in sets:
                before = costs.get(name, Effort(0.0)).whole
                costs[name] = Effort(before + cost.of(cost.parts))
                gathers.pop(name, None)
            else:
                costs[name] = cost
            self._parts[plan.name] = cost.parts
        self.ranks.deal(costs, gathers, sets)

    def deal_transforms(self, plans: Sequence[Plan]) -> None:
        """Deal out what it takes to choose what layers' inputs go through first, which is tried on
        their weights, and to gather for that. Codes are dealt after it."""
        costs = Counter[str]()
        for plan in plans:
            costs[self.mixing.sets.get(plan.name, plan.name)] += plan.parameter.numel()
        efforts = {name: Effort(float(cost)) for name, cost in costs.items()}
        self.ranks.deal(efforts, together=self.mixing.sets)

    def users_of(self, plan: Plan) -> set[int]:
        """The processes that must know what a layer's inputs are: its owner, and who chooses its
        codes."""
        every = {self.ranks.chooser(plan.name, i) for i in range(self._parts.get(plan.name, 1))}
        return every | {self.ranks.owner(plan.name)}

    @property
    def data(self) -> Batches:
        """The batches. Raises ValueError for a session whose user runs the model."""
        if self._data is None:
            raise ValueError("this session has no batches: run the model yourself")
        return self._data

    def run(self, callbacks: Mapping[str, Callback]) -> None:
        """One pass over the batches. The first one counts what every layer sees, too.

        Raises SkippedError after it if some layer saw nothing and `strict` asks for all.
        """
        if self.coverage is not None:
            some = [p for p in self.layers if p.name in callbacks]
            with watch({p.module: self.without_padding(p, callbacks[p.name]) for p in some}):
                self.data.run(self.model, self.padding, self.ranks)
            return
        coverage = Coverage()
        both = {
            plan.module: self.without_padding(
                plan, each_of(coverage.counter(plan), callbacks.get(plan.name))
            )
            for plan in self.layers
        }
        with watch(both):
            self.data.run(self.model, self.padding, self.ranks)
        self.coverage, coverage.batches = coverage, self.ranks.count(self.data.count)
        self.merge(coverage, list(coverage.layers))
        if self.strict:
            coverage.raise_if_unseen()
        self.tokens = {name: counts.rows for name, counts in coverage.layers.items()}
        for name in coverage.unseen:
            self.notes[name].append(f"saw no data in {coverage.batches} batches")

    def merge(self, coverage: Coverage, names: Sequence[str]) -> None:
        """What these layers saw in all processes, and what all are told of their padding."""
        ranks = self.ranks
        if ranks.alone:
            return
        own = {name: astuple(coverage.layers[name]) for name in names}
        notes = self.padding.unfit
        every = ranks.together(lambda: (own, {n: notes[n] for n in names if n in notes}))
        for name in names:
            calls, rows = zip(*(counts[name] for counts, _ in every), strict=True)
            coverage.layers[name] = DataCounts(sum(calls), sum(rows))
            text = [texts[name] for _, texts in every if name in texts][:1]
            self.details[name] += [note for note in text if note not in self.details[name]]

    def without_padding(self, plan: Plan, callback: Callback) -> Callback:
        """A callback of this layer that sees no padding."""
        alone = self.ranks.alone  # otherwise `merge` tells what was noted in any process
        return self.padding.without(plan, callback, self.details[plan.name] if alone else [])

    def statistics(self, plans: Sequence[Plan], *, gram: bool = True) -> dict[str, InputStats]:
        """One pass: what is known of these layers' inputs, of those that saw any."""
        callbacks, collectors = self.collect(plans, gram=gram)
        self.run(callbacks)
        return self.results_of(collectors)

    def collect(
        self, plans: Sequence[Plan], *, gram: bool = True
    ) -> tuple[dict[str, Callback], dict[str, InputStatsCollector]]:
        """What has to be told of these layers' inputs, and what then holds the statistics.

        gram: whether those have their gram matrices
        """
        self.deal_transforms(plans)
        collectors = {plan.name: _collector(plan, gram=gram) for plan in plans}
        return {p.name: self._gather(p, collectors[p.name]) for p in plans}, collectors

    def results_of(self, collectors: Mapping[str, InputStatsCollector]) -> dict[str, InputStats]:
        """The statistics of those that saw any input."""
        for name, collector in collectors.items():
            self._tell_skipped(name, collector.skipped)
            self._tell_alike(name, collector.neighbours)
        return {name: each.result() for name, each in collectors.items() if each.rows}

    def _tell_skipped(self, name: str, skipped: int) -> None:
        note = f"{skipped} rows of its input hold a NaN or an infinity, left out"
        if skipped and note not in self.notes[name]:
            self.notes[name].append(note)

    def _tell_alike(self, name: str, neighbours: Neighbours | None) -> None:
        """Of a convolution nothing: places that see one color are most of many pictures."""
        share = None if neighbours is None else neighbours.share()
        if share is not None and not of_convolution(self.by_name[name].layout):
            self.alike[name] = share

    def grams(self, plans: Sequence[Plan]) -> dict[str, Tensor]:
        """One pass: the gram matrices of these layers' inputs, of those that saw any."""
        sums = self.gram_sums(plans)
        self.run(sums.callbacks)
        return self.finish_grams(sums)

    def gram_sums(self, plans: Sequence[Plan]) -> GramSums:
        """What has to be told of these layers' inputs, and then holds their grams."""
        others = self.mixing.others(plans)
        return GramSums(plans, self.places, self.ranks, self.mixing.sets, others)

    def finish_grams(self, sums: GramSums) -> dict[str, Tensor]:
        """The grams of those that saw any input, and of experts that are filled up with others', in
        the processes that need them."""
        for name, collector in sums.own.items():
            self._tell_skipped(name, collector.skipped)
            self._tell_alike(name, collector.neighbours)
        experts = {n: own for n, own in sums.own.items() if n in self.mixing.sets}
        return self.mixing.mixed(experts) | sums.result(self.users_of)

    def spread_matrices(
        self, matrices: Mapping[str, Tensor], plans: Sequence[Plan]
    ) -> dict[str, Tensor]:
        """Matrices [k, k] float64 of layers that their owners have, in the processes that choose
        their codes."""
        every = self.ranks.together(lambda: set(matrices))
        result = dict(matrices)
        for plan in plans:
            users, owner = self.users_of(plan), self.ranks.owner(plan.name)
            if users == {owner} or plan.name not in every[owner]:
                continue
            k, own = width(plan), matrices.get(plan.name)
            matrix = self.ranks.broadcast(own, k * k, owner).view(k, k)
            if self.ranks.rank in users:
                result[plan.name] = matrix
        return result

    def _gather(self, plan: Plan, into: InputStatsCollector) -> Callback:
        def add(x: Tensor, size: Size) -> None:
            for piece in rows_of(plan, x, self.places[plan.name].before, size):
                into.add(piece)

        return with_size(self.ranks.at_owner(plan.name, add))

    def observing(
        self, targets: Sequence[tuple[Plan, str]], spec: Spec
    ) -> tuple[dict[str, Callback], list[Observing]]:
        """What has to be told of these layers' inputs and outputs, and who looks at it."""
        observers: list[Observing] = []
        callbacks: dict[str, Callback] = {}
        for plan, part in targets:
            observer = observer_of(spec, getattr(plan.scheme, part)).to(plan.parameter.device)
            observers.append((plan, part, observer))
            look = self._looking(plan, part, observer)
            callbacks[plan.name] = each_of(look, callbacks.get(plan.name))
        return callbacks, observers

    def use_observers(self, observers: Sequence[Observing]) -> None:
        """The static scales that the observers choose now."""
        for _, _, observer in observers:
            if observer.merges_exactly and not self.ranks.alone:
                observer.all_reduce_(self.ranks.group)
        for plan, part, _ in observers:
            if self.ranks.owns(plan.name):
                self._set_scale(plan.name, part, self.mixing.observer(plan, part, observers))

    def _looking(self, plan: Plan, part: str, observer: Observer) -> Callback:
        before = self.places[plan.name].before

        def observe(x: Tensor) -> None:
            counts = seen_by(plan, x)
            observer.observe(counts if before is None or part == "output" else before(counts))

        if not observer.merges_exactly:  # it has to see all batches, in their order
            observe = self.ranks.at_owner(plan.name, observe)

        def look(x: Tensor, y: Any) -> None:
            observe(x if part == "input" else y)

        return look

    def _set_scale(self, name: str, part: str, observer: Observer) -> None:
        odd = {"NaN": int(observer.nans), "infinite": int(observer.infinities)}
        if any(odd.values()):
            counts = ", ".join(f"{count} {kind}" for kind, count in odd.items() if count)
            self.notes[name].append(
                f"{counts} of {int(observer.samples)} {part} values, which were left out"
            )
        if not observer.finite:
            return
        self.notes[name] += lost_signs(part, observer.low, observer.format)
        fmt = next(getattr(p.scheme, part) for p in self.layers if p.name == name)
        quantizer = QInput(fmt)
        if fmt.gives_outer:
            quantizer.set_outer(outer_of(observer, fmt))
            setattr(self.places[name], part, quantizer)
            self.details[name].append(f"static outer scale of its {part} by {observer.name}")
            return
        try:
            parts = observer.qparams()._asdict()
        except ValueError as error:
            raise ValueError(f"the {part} of {name}: {error}") from error
        quantizer.restore({key: value for key, value in parts.items() if value is not None})
        setattr(self.places[name], part, quantizer)
        more = observer.describe().partition("; ")[2]  # such as which of several it followed
        self.details[name].append(f"static {part} by {observer.name}{more and f' ({more})'}")


def _collector(plan: Plan, *, gram: bool) -> InputStatsCollector:
    k, device = width(plan), plan.parameter.device
    return InputStatsCollector(k, device, k // plan.features("input"), gram=gram)


def nbytes_of(plan: Plan, part: str, spec: Spec) -> int:
    """Bytes of an observer that has begun. Raises ValueError for a format it cannot serve."""
    probe = observer_of(spec, getattr(plan.scheme, part))
    probe.observe(torch.zeros(1, plan.features(part)))
    return sum(buffer.nbytes for buffer in probe.buffers())


def has_rows(plan: Plan) -> bool:
    """Whether the layer's output is rows @ weight.T for one matrix of rows: no table, no groups."""
    takes = plan.kind.takes_input
    return takes and plan.owns_weight and getattr(plan.module, "groups", 1) == 1


def of_a_stack(plan: Plan) -> bool:
    """Whether it is a matrix of a stack, which is a layer only while a model is calibrated."""
    return hasattr(plan.module, "of_stack")


def takes_transform(plan: Plan) -> bool:
    """Whether something can be put before the layer."""
    return has_rows(plan) and not plan.tied and not of_a_stack(plan)


def changed_weight_message(name: str) -> str:
    """What is raised of a model that does not keep its modules."""
    return (
        f"the model changed {name or 'itself'} while it was calibrated (a list of experts that is "
        "made anew in each call?), so that its data are not of what it has now: calibrate a model "
        "whose modules stay, or skip these layers"
    )


def static_parts(plan: Plan) -> Iterator[str]:
    """Which of "input", "output" get a scale from an observer: those of static blocks."""
    for part in ("input", "output"):
        fmt = getattr(plan.scheme, part)
        takes = part == "output" or plan.kind.takes_input
        if fmt is not None and takes and (fmt.block.static or fmt.gives_outer):
            yield part


def observer_of(spec: Spec, fmt: Format) -> Observer:
    """What looks at an input or output in this format. An outer scale that is to be given is that
    of the largest magnitude, whatever the spec: blocks have scales of their own beside it."""
    if not fmt.gives_outer:
        return make(spec, fmt)
    return make("min_max", replace(fmt, block=read_block("tensor"), scale=FLOAT_SCALES["fp32"]))


def outer_of(observer: Observer, fmt: Format) -> Tensor:
    """The outer scale [1, 1] of tensors in `fmt` whose ranges an observer has seen."""
    low, high, _ = observer.range()
    with subnormals_kept():
        return reference.outer_of(reference.numerator(low, high, fmt), fmt)


def each_of(first: Callback, second: Callback | None) -> Callback:
    """One callback that tells both, if there is a second one."""
    if second is None:
        return first

    def call(x: Tensor, y: Any) -> None:
        first(x, y)
        second(x, y)

    return call
