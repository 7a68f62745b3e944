# SPDX-License-Identifier: BSD-3-Clause
"""The walk: block after block is looked at and chosen for, each run a few times for all batches.

A block is run at most three times for each batch, however many there are: in the float model, if a
transform or an algorithm wants to know what it does there; on what the quantized blocks before it
leave, for static scales and grams; and quantized, for the blocks after it.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from blockscale.calibration.algorithms import Transform
from blockscale.calibration.block_calls import LazySequence, TensorStore
from blockscale.calibration.block_lane import Lane
from blockscale.calibration.block_record import record, run_around
from blockscale.calibration.choose import (
    groups,
    side_by_side,
    statistics_bytes,
    tell_untransformed,
    weighs,
)
from blockscale.calibration.find_blocks import LayerBlock, NotWalkableError
from blockscale.calibration.input_stats import watch
from blockscale.calibration.observers import Spec
from blockscale.calibration.session import Session, has_rows, static_parts, takes_transform
from blockscale.calibration.walk.statistics import FloatInputs, Looker
from blockscale.calibration.walk.weights import Options, Weights, standing_in
from blockscale.layers.apply import swap
from blockscale.layers.plan import Plan

if TYPE_CHECKING:
    from blockscale.layers.layer import QLayer


class Walk:
    """What is chosen for the layers of a session, block by block."""

    def __init__(
        self,
        session: Session,
        blocks: Sequence[LayerBlock],
        batches: Sequence[Any],
        methods: tuple[Any, Transform | None, Spec],
        options: Options,
    ):
        algorithm, self.transform, observer = methods
        self.session, self.blocks, self.batches = session, blocks, batches
        self.weights = Weights(session, algorithm, self.transform, options)
        self.looker = Looker(session, observer, options.budget)
        self.sequential = options.sequential if self.weights.looks else False
        self.floats = FloatInputs(session) if self._compares() else None
        if self.floats is not None and self._is_one_block():
            self.sequential = "layers"  # its layers stop for the float model, group by group
        self.budget, self.progress = options.budget, options.progress
        self.settler, self.finished_blocks = options.settler, options.finished_blocks
        inside = {plan.name for block in blocks for plan in block.plans}
        self.outside = [plan for plan in session.layers if plan.name not in inside]
        self.ranks, self.count = session.ranks, session.ranks.count(len(batches))
        self.stand_ins: dict[str, QLayer] = {}  # for layers outside, once they are chosen

    def run(self) -> None:
        """Choose everything. Raises NotWalkableError where a chain cannot be walked."""
        if self.transform is not None:
            fit = self._fit(self.session.layers)
            tell_untransformed(self.session, self.transform, [fit])
        runs = self._runs()
        self._start(runs)
        with TensorStore(self.budget) as rest:
            self._open_lanes(rest)
            while sequence := self._next(verify=runs < 3):
                for i in sequence:
                    self._do(i)
                    lines = [lane.finish(i) for lane in self.lanes]
                    if not all(lines):
                        break  # other shapes: the calls of what comes next are recorded anew
            self._rest()
        first = {block.name: block.plans[0].name for block in self.blocks}
        of_ranks = self.ranks.together(lambda: [note for lane in self.lanes for note in lane.notes])
        for name, note in dict.fromkeys(note for notes in of_ranks for note in notes):
            self.session.details[first[name]].append(note)

    def _compares(self) -> bool:
        """Whether inputs are compared with those of the float model, which differ here."""
        return bool(self.sequential) and self.weights.needs_drift

    def _is_one_block(self) -> bool:
        return len(self.blocks) == 1 and self.blocks[0].module is self.session.model

    def _start(self, runs: int) -> None:
        count, every = len(self.blocks), len(self.batches)
        count_done = 0
        if self.finished_blocks is not None:
            count_done = sum(i in self.finished_blocks for i in range(count))
            self.progress.say(f"{count_done} of {count} blocks are done already")
        steps = (count - count_done) * self.weights.steps
        self.progress.start(count * runs * every + steps)
        if self.settler is not None:
            self.settler.stream.load("", outside=tuple(block.name for block in self.blocks))

    def _open_lanes(self, store: TensorStore) -> None:
        """The main lane is the one whose grams count; the float one may be another, or the same."""
        model = self.session.model
        float_too = not self.sequential or self._knows_float()
        self.main = Lane(model, self.blocks, self.batches, store, self._around)
        self.float = self.main
        if self.sequential and float_too:
            self.float = Lane(model, self.blocks, self.batches, store)
        self.lanes = [self.float] if self.float is self.main else [self.float, self.main]
        for lane in self.lanes:
            lane.padding, lane.ranks = self.session.padding, self.ranks
        if self.settler is not None:
            for lane in self.lanes:
                lane.ready, lane.device = self.settler.load, self.settler.stream.device
        self.float_kept = float_too  # whether what float blocks give is kept in the float lane

    def _around(self) -> AbstractContextManager[None]:
        return standing_in(self.session.model, self.stand_ins)

    def _runs(self) -> int:
        """How often each block is run for a batch, if the budget allows."""
        static = any(True for plan in self.session.layers for _ in static_parts(plan))
        looks = self.weights.needs_gram or static
        if not self.sequential:
            return (self.transform is not None) + looks or 1
        return self._knows_float() + looks + 1

    def _knows_float(self) -> bool:
        """Whether the float model is run beside the one that is quantized so far."""
        return self.transform is not None or self.weights.by_block or self.floats is not None

    def _next(self, *, verify: bool) -> list[int]:
        """The blocks that can be run next, once the layers before them are chosen."""
        if self.outside and len(self.main.finished_blocks) < len(self.blocks):
            self.looker.look(self.outside, {}, lambda: run_around(self.main))
            unseen = self.looker.take_back_unseen(self.outside)
            self._choose_outside([plan for plan in self.outside if plan not in unseen])
            self.outside = unseen
        if len(self.main.finished_blocks) == len(self.blocks):
            return []
        with watch({plan.module: self._meet for plan in self.outside}):
            results = [record(lane, verify=verify and lane is self.lanes[0]) for lane in self.lanes]
        if any(each != results[0] for each in results):
            block = self.blocks[results[0][0]] if results[0] else self.blocks[0]
            raise NotWalkableError(block.chain, "the quantized model goes through other blocks")
        return results[0]

    def _meet(self, x: Tensor, y: Any) -> None:
        """A layer outside is called whose weight is not chosen yet."""
        del x, y
        for lane in self.lanes:
            lane.met_others = True

    def _rest(self) -> None:
        """Blocks that no batch goes through, and the layers after the last block."""
        unseen = [
            block for i, block in enumerate(self.blocks) if i not in self.main.finished_blocks
        ]
        if self.settler is not None:
            for block in unseen:
                self.settler.load(block)
        rest = [plan for block in unseen for plan in block.plans]
        rest += self.outside
        if rest:
            self._choose_outside(rest)
        order = {plan.name: i for i, plan in enumerate(self.session.layers)}
        layers = self.looker.counts.layers
        self.looker.counts.layers = dict(sorted(layers.items(), key=lambda each: order[each[0]]))

    def _choose_outside(self, plans: Sequence[Plan]) -> None:
        """Layers outside of blocks: the model around the blocks is run for them."""
        for group, statistics in self.looker.statistics(
            plans, self._fit(plans), lambda: run_around(self.float), gram=weighs(self.transform)
        ):
            self.weights.transform_layers(group, statistics)
        for part in self._parts(plans, one_by_one=bool(self.sequential)):
            run = self._run_around_both
            self.session.deal(part, self.weights.algorithm)
            grams = self.looker.observe(part, self._gram_plans(part), run, self.floats)
            self.looker.look_once(part, lambda: run_around(self.main))
            self.looker.tell_unseen(part, self.count)
            self.weights.choose(part, grams)
            if self.sequential:
                self.stand_ins |= self.weights.stand_ins(part)

    def _do(self, i: int) -> None:
        """Everything for the layers of one block."""
        block = self.blocks[i]
        if self.settler is not None:
            self.settler.load(block)
        if self.finished_blocks is not None and i in self.finished_blocks:
            self.finished_blocks.load(i, block.plans, self.session)
            if self.float is not self.main or not self.sequential:
                self._run(self.float, i)
            self.main.trust(i)  # its next run is that of the quantized block
        else:
            self._choose_inside(i)
            if self.finished_blocks is not None:
                self.finished_blocks.save(i, block.plans, self.session)
        self._go_on(i)
        if self.settler is not None:
            self.settler.settle(self.session, block.name, block.plans)

    def _go_on(self, i: int) -> None:
        """Run a block for the blocks after it."""
        if self.sequential and self._more():
            layers = self.weights.stand_ins(self.blocks[i].plans)
            with standing_in(self.session.model, layers):
                self._run(self.main, i, keep=True)
        elif not self.sequential and not self.main.keeps(i):
            self._run(self.main, i)

    def _choose_inside(self, i: int) -> None:
        """What is chosen for the layers of one block."""
        plans, model = self.blocks[i].plans, self.session.model
        fit = self._fit(plans)
        for group, statistics in self.looker.statistics(
            plans, fit, lambda: self._run(self.float, i), gram=weighs(self.transform)
        ):
            self.weights.transform_layers(group, statistics)
        if self.weights.by_block and not self.float.keeps(i):
            self.looker.look(plans, {}, lambda: self._run(self.float, i))
        layers: dict[str, QLayer] = {}
        for part in self._parts(plans, one_by_one=self.sequential == "layers"):
            self.session.deal(part, self.weights.algorithm)
            with standing_in(model, layers):
                grams = self.looker.observe(
                    part, self._gram_plans(part), partial(self._run_both, i, layers), self.floats
                )
                self.looker.look_once(part, lambda: self._run(self.main, i))
            if self.weights.by_block:
                self._choose_block(i, grams)
            else:
                self.weights.choose(part, grams)
            if self.sequential == "layers":
                layers |= self.weights.stand_ins(part)
        self.looker.tell_unseen(plans, self.count)

    def _choose_block(self, i: int, grams: Mapping[str, Tensor]) -> None:
        count, block = len(self.batches), self.blocks[i]
        calls = LazySequence(count, lambda b: self.main.call_of(i, b))
        blank = self.session.padding.blank
        targets = LazySequence(count, lambda b: blank(self.float.target(i, b), self.batches[b]))
        order = self.looker.in_order(block.plans)
        self.weights.choose_block(block, order, grams, calls, targets)

    def _run_both(self, i: int, layers: "Mapping[str, QLayer]") -> None:
        """Block i in the main lane; with `floats`, each batch in the float model before. layers:
        that stand in it."""
        if self.floats is None:
            self._run(self.main, i)
            return
        model, keep = self.session.model, self.float_kept and not self.float.keeps(i)
        own = {n: p.module for p in self.blocks[i].plans for n in p.names if n in layers}
        floats = self.floats

        def one(b: int) -> None:
            with floats.of_the_float_model():
                quantized = swap(model, own)
                try:
                    self.float.run_one(i, b, keep=keep)
                finally:
                    swap(model, quantized)
            self.main.run_one(i, b, keep=False)
            self.progress.advance()

        self.ranks.each(len(self.batches), one)

    def _run_around_both(self) -> None:
        """The same of the model around the blocks."""
        if self.floats is None:
            run_around(self.main)
            return
        floats = self.floats

        def one(b: int) -> None:
            with floats.of_the_float_model():
                run_around(self.float, b)
            run_around(self.main, b)

        self.ranks.each(len(self.batches), one)

    def _run(self, lane: Lane, i: int, *, keep: bool | None = None) -> None:
        if keep is None:
            keep = lane is self.float and self.float_kept and not lane.keeps(i)
        lane.run(i, keep=keep, tell=self.progress.advance)

    def _fit(self, plans: Sequence[Plan]) -> list[Plan]:
        """Those that a transform can be for."""
        some = [plan for plan in plans if takes_transform(plan)]
        return some if self.transform is not None else []

    def _gram_plans(self, plans: Sequence[Plan]) -> list[Plan]:
        """Those whose grams are needed."""
        return [plan for plan in plans if has_rows(plan)] if self.weights.needs_gram else []

    def _parts(self, plans: Sequence[Plan], *, one_by_one: bool) -> list[list[Plan]]:
        """What is quantized before the next part is looked at."""
        if not one_by_one or not self.weights.needs_gram or self.weights.by_block:
            return [list(plans)]
        return groups(plans, statistics_bytes, self.budget, side_by_side(self.session.model))

    def _more(self) -> bool:
        """Whether anything comes after the block that is chosen for."""
        return bool(self.outside) or len(self.main.finished_blocks) + 1 < len(self.blocks)
