# SPDX-License-Identifier: BSD-3-Clause
"""SignRound: learned rounding, by what a whole block gives.

Cheng et al.: "Optimize weight rounding via signed gradient descent for the quantization of LLMs",
2023 (arXiv 2309.05516), after AdaRound (Nagel et al. 2020, arXiv 2004.10568). Every weight gets an
offset of at most half a step before it is rounded, every range factors for its ends; both are
learned by descent on the squared error of the block's output (section 3), block after block.

It differs from the paper in this:

* any format: a step is the distance of the two numbers beside a weight, of whatever element
* it begins with the codes of GPTQ, not with rounding to nearest: offsets then begin where these
  codes are kept
* offsets move by the mean of the last gradients, divided by its root mean square over the weight,
  and not by the sign of one; rates fall along half a cosine, not linearly (`learned.direction`)
* what is best is found on the same samples each time, not on those of each step
* with `whole`, all blocks are learned once more together, by what the whole model gives: the paper
  stops at blocks, whose errors are not equally dear
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from blockscale.calibration.algorithms.block_scales import widened
from blockscale.calibration.algorithms.learned.dealt import DealtSamples
from blockscale.calibration.algorithms.learned.loop import (
    STARTS,
    DescentSettings,
    divergence,
    learn,
    least,
    squared_error,
    start_of,
)
from blockscale.calibration.algorithms.learned.samples import Samples
from blockscale.calibration.algorithms.learned.stage import Stage
from blockscale.calibration.algorithms.learned.weight import LearnedWeight
from blockscale.calibration.block_calls import BlockTask
from blockscale.calibration.places import share_codes
from blockscale.core.format import Format
from blockscale.core.pack import to_stored
from blockscale.layers.assembly import beside_rows
from blockscale.layers.plan import Plan
from blockscale.ops.tensor import QTensor

Codes = Mapping[str, QTensor]


class SignRound:
    """Rounding and ranges learned from the calls of a block.

    steps: of the descent for each block, 200 in the paper
    start: whose codes it begins with: "gptq", "search", "mse" or "absmax"
    rate: how far offsets go in all steps together, in parts of a step, where their gradient is as
        large as the root mean square of its weight's
    factors: the same for ranges, in octaves, as a part of `rate`; 0 leaves the start's scales
    positions: places of the output, such as tokens, that each step looks at: 8 rows of 512
    patience: checks, of which there are ten, without a better result before it ends; 0: never
    whole: steps of a second descent, of all blocks together, by what the whole model gives: the
        divergence of its logits, if it gives such, else their squared error; 0: none. It holds
        what the float model gives for all batches, and 24 bytes for each weight.
    whole_rate: `rate` of that one
    rising: part of the steps in which rates rise, before they fall
    inside: how far a weight may lie from the code it begins with, in gaps; what is further away is
        drawn to there. At 0.49 a hundredth of a gap undoes what GPTQ chose, and the first steps do

    Kept is the best of the checks; and of that, "mse" and "absmax" what has the least error of the
    block's output over all calls. If it is one of the latter two, a note says so.
    """

    name: ClassVar[str] = "signround"
    dealt: ClassVar[bool] = True  # it knows calls in several processes

    def __init__(  # noqa: PLR0913 - each is a choice of its own
        self,
        steps: float = 200,
        *,
        start: str = "gptq",
        rate: float = 0.25,
        factors: float = 0.5,
        positions: int = 4096,
        patience: int = 0,
        whole: int = 0,
        whole_rate: float = 0.1,
        rising: float = 0.0,
        inside: float = 0.49,
    ):
        if not isinstance(steps, int | float) or steps < 1 or steps != int(steps):
            raise ValueError(f"signround: steps must be an integer >= 1, got {steps!r}")
        if start not in STARTS:
            raise ValueError(f"signround: unknown start {start!r}; choose from {', '.join(STARTS)}")
        self.settings = DescentSettings(
            int(steps),
            rate,
            factors,
            positions=int(positions),
            patience=int(patience),
            rising=rising,
            inside=inside,
        )
        self.start = start
        self.of_model = self.settings._replace(steps=int(whole), rate=whole_rate)
        _check(self.settings, whole, whole_rate)

    @property
    def needs_gram(self) -> bool:
        """Whether it begins with codes that need the gram matrix of the layers' inputs."""
        return self.start in ("gptq", "search")

    @property
    def steps(self) -> int:
        """Of the descent for each block."""
        return self.settings.steps

    @property
    def whole(self) -> bool:
        """Whether `quantize_model` is to be called."""
        return self.of_model.steps > 0

    def quantize(
        self, weight: Tensor, fmt: Format, gram: Tensor | None, layer: str
    ) -> tuple[QTensor, list[str]]:
        """A layer that is in no block: the codes that learning would begin with."""
        q, notes = start_of(self.start, widened(weight, fmt, layer), fmt, gram, layer)
        return q, [*notes, "not in a model block: its rounding was not learned"]

    def quantize_block(self, task: BlockTask) -> dict[str, tuple[QTensor, list[str]]]:
        """As `BlockAlgorithm.quantize_block`."""
        weights = {plan.name: _stored(task, plan) for plan in task.plans}
        if not weights:
            return {}
        notes: dict[str, list[str]] = {name: [] for name in weights}
        start: dict[str, QTensor] = {}
        for name, each in _starts(self.start, weights, task).items():
            start[name], notes[name] = each
        codes: Codes = start
        if _has_rows(task):
            codes, more = self._learned(task, weights, start)
            notes = {name: [*each, *more] for name, each in notes.items()}
        return {name: (codes[name], notes[name]) for name in weights}

    def quantize_model(self, task: BlockTask, start: Codes) -> dict[str, tuple[QTensor, list[str]]]:
        """The same for a whole model as one block, all of whose layers have codes to begin with;
        these are kept where it finds none that are better on all calls."""
        if not _has_rows(task):
            return {name: (q, []) for name, q in start.items()}
        stage = Stage(task)
        error = divergence if stage.gives_logits(task.calls[0]) else squared_error
        settings = self.of_model._replace(half=_may_be_half(task), error=error)
        samples = samples_of(stage, task)
        with stage.quantizing():
            learning = {
                plan.name: LearnedWeight(_stored(task, plan), start[plan.name], settings.inside)
                for plan in task.plans
            }
            learn(stage, learning, samples, settings, task.seed, task.progress)
            learned = {name: each.result() for name, each in learning.items()}
            del learning
            candidates = {"blocks": start, "model": learned}
            best = least(stage, candidates, samples, settings.positions, error)
        return {name: (q, []) for name, q in candidates[best].items()}

    def _learned(
        self, task: BlockTask, weights: Mapping[str, Tensor], start: Codes
    ) -> tuple[Codes, list[str]]:
        """The best codes of all that are known, and a note if they were not learned."""
        stage = Stage(task)
        samples = samples_of(stage, task)
        with stage.quantizing():
            learning = {
                name: LearnedWeight(weights[name], start[name], self.settings.inside)
                for name in weights
            }
            settings = self.settings._replace(half=_may_be_half(task))
            learn(stage, learning, samples, settings, task.seed, task.progress)
            learned = {name: each.result() for name, each in learning.items()}
            del learning
            candidates = {"learned": learned}
            for kind in ("mse", "absmax"):
                others = _starts(kind, weights, task)
                candidates[kind] = {name: q for name, (q, _) in others.items()}
            best = least(stage, candidates, samples, self.settings.positions)
        if best == "learned":
            return learned, []
        return candidates[best], [
            f"learned rounding did not lower the error of {task.name}: weights by {best}"
        ]


def _check(settings: DescentSettings, whole: float, whole_rate: float) -> None:
    """Raises ValueError for numbers that make no sense."""
    _, rate, factors, _, positions, _, patience, *_ = settings
    rising, inside = settings.rising, settings.inside
    if not 0 < rate <= 1 or not factors >= 0:
        raise ValueError(
            f"signround: rate must be above 0 and at most 1, factors >= 0, got {rate!r} and "
            f"{factors!r}"
        )
    if not 0 <= rising < 1 or not 0 < inside < 0.5:
        raise ValueError(
            "signround: rising must be from 0 to below 1, inside above 0 and below 1/2, got "
            f"{rising!r} and {inside!r}"
        )
    if whole < 0 or whole != int(whole) or not 0 < whole_rate <= 1:
        raise ValueError(
            "signround: whole must be an integer >= 0 (steps), whole_rate above 0 and at "
            f"most 1, got {whole!r} and {whole_rate!r}"
        )
    if positions < 1 or patience < 0:
        raise ValueError(
            f"signround: positions must be >= 1 and patience >= 0, got {positions!r} and "
            f"{patience!r}"
        )


def _has_rows(task: BlockTask) -> bool:
    """Whether there is anything that the block should give."""
    return any(task.ranks.together(lambda: any(target.numel() for target in task.targets)))


def _may_be_half(task: BlockTask) -> bool:
    """Whether products in bfloat16 are near enough while it descends, and fast: their errors are
    2^-9 of a value, those of 4 bits ten times that and more."""
    few = all(plan.format.bits <= 4 for plan in task.plans)
    device = task.plans[0].parameter.device.type
    if device == "cuda":
        return few and torch.cuda.is_bf16_supported()
    data: Mapping[str, object] = getattr(
        torch.cpu, "get_capabilities", dict
    )()  # not in all versions of torch
    return few and device == "cpu" and bool(data.get("avx512_bf16"))


def samples_of(stage: Stage, task: BlockTask) -> Samples:
    """The calls of a task, here or in several processes."""
    if task.ranks.alone:
        return Samples(task.calls, task.targets, stage.as_it_is)
    return DealtSamples(task.calls, task.targets, stage.as_it_is, task.ranks)


def _starts(
    kind: str, weights: Mapping[str, Tensor], task: BlockTask
) -> dict[str, tuple[QTensor, list[str]]]:
    """`_start` for all layers of a block, each in the process that owns it."""

    def own() -> dict[str, tuple[QTensor, list[str]]]:
        return {
            plan.name: _start(kind, weights[plan.name], task.grams.get(plan.name), task, plan)
            for plan in task.plans
            if task.ranks.owns(plan.name)
        }

    return share_codes(task.ranks, task.plans, own)


def _start(
    kind: str, weight: Tensor, gram: Tensor | None, task: BlockTask, plan: Plan
) -> tuple[QTensor, list[str]]:
    """`start_of` for a layer of a block, whose outer scale other layers may share."""
    notes: list[str] = []

    def choose(x: Tensor) -> QTensor:
        q, more = start_of(kind, x, plan.format, gram, plan.name)
        notes.extend(more)
        return q

    return beside_rows(weight, plan.format, task.places[plan.name].top, choose), notes


def _stored(task: BlockTask, plan: Plan) -> Tensor:
    """The weight [n, k] float32 that is to be quantized. Raises ValueError as `widened`."""
    weight = to_stored(plan.parameter.detach(), plan.layout).to(torch.float32)
    before = task.places[plan.name].before
    if before is not None:
        weight = before.to_weight(weight)
    return widened(weight, plan.format, plan.name)
