# SPDX-License-Identifier: BSD-3-Clause
"""The codes of weights on the walk: of a layer from its gram, of a block from its calls."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from blockscale.calibration.algorithms import Transform
from blockscale.calibration.blocks.calls import Sequenced
from blockscale.calibration.blocks.find import Block
from blockscale.calibration.blocks.task import BlockTask
from blockscale.calibration.choose import choose_weight, transform_layers
from blockscale.calibration.input_stats import InputStats
from blockscale.calibration.session import Session
from blockscale.calibration.walk.layers import quantized_so_far
from blockscale.calibration.walk.options import Options
from blockscale.core.work.progress import Progress
from blockscale.layers.joined import settle_top
from blockscale.layers.layer import QLayer
from blockscale.layers.plan import Plan
from blockscale.layers.supplied import fitting


class Weights:
    """The weight algorithm, or block algorithm, of a walk, and what it has chosen.

    by_block: whether it chooses for a whole block
    needs_gram: whether it must know the layers' inputs; looks: whether it must know any data
    needs_drift: whether it must know the layers' inputs in the float model, too
    steps: what progress is told of for each block that it chooses for
    """

    def __init__(
        self, session: Session, algorithm: Any, transform: Transform | None, options: Options
    ):
        self.session, self.algorithm, self.transform = session, algorithm, transform
        self.by_block = callable(getattr(algorithm, "quantize_block", None))
        self.needs_gram = algorithm is not None and algorithm.needs_gram
        self.needs_drift = bool(getattr(algorithm, "needs_drift", False))
        self.looks = self.by_block or self.needs_gram
        self.steps: int = getattr(algorithm, "steps", 0) if self.by_block else 0
        self._progress, self._seed = options.progress, options.seed

    def transform_layers(self, group: Sequence[Plan], known: Mapping[str, InputStats]) -> None:
        """What the inputs of a group go through first."""
        if self.transform is not None:
            transform_layers(self.session, self.transform, group, known)

    def choose(self, plans: Sequence[Plan], grams: Mapping[str, Tensor]) -> None:
        """The codes of layers one by one. A block algorithm leaves them to plain rounding."""
        for plan in plans:
            if self.algorithm is None or not plan.owns_weight:
                continue
            if callable(getattr(self.algorithm, "quantize", None)):
                choose_weight(self.session, self.algorithm, plan, grams.get(plan.name))
            else:
                self.session.details[plan.name].append("plain rounding: it is in no block")

    def choose_block(
        self,
        block: Block,
        plans: Sequence[Plan],
        grams: Mapping[str, Tensor],
        calls: Sequenced,
        targets: Sequenced,
    ) -> None:
        """The codes of all layers of a block at once. plans: in the order of their calls."""
        own = [plan for plan in plans if plan.owns_weight]
        steps, places = Steps(self.steps, self._progress), self.session.places
        for plan in own:
            settle_top(plan, self.session.layers, places)
        task = BlockTask(
            block.name, block.module, own, places, calls, targets, grams, self._seed, steps
        )
        made = self.algorithm.quantize_block(task)
        steps.close()
        for plan in own:
            if plan.name not in made:
                raise ValueError(f"{self.algorithm.name} returned no weight for {plan.name}")
            q, notes = made[plan.name]
            self.session.places[plan.name].weight = fitting(plan, q)
            self.session.details[plan.name].append(f"weight by {self.algorithm.name}")
            self.session.notes[plan.name] += notes

    def stand_ins(self, plans: Sequence[Plan]) -> dict[str, QLayer]:
        """What stands in for these layers while those after them are chosen: weights are quantized,
        and for a block algorithm inputs and outputs as well."""
        return quantized_so_far(self.session, plans, inputs=self.by_block)


class Steps(Progress):
    """The steps that a block algorithm takes for one block: `count` of them are told in all, also
    where it takes fewer, such as none for a block without calls, or more."""

    def __init__(self, count: int, told: Progress):
        self._left, self._told = count, told

    def advance(self, name: str = "", amount: int = 1) -> None:
        amount = min(amount, self._left)
        if amount:
            self._left -= amount
            self._told.advance(name, amount)

    def say(self, text: str) -> None:
        self._told.say(text)

    def close(self) -> None:
        self.advance(amount=self._left)
