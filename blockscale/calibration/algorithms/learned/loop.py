# SPDX-License-Identifier: BSD-3-Clause
"""The descent: rounding offsets and ranges of all weights of a block, by what the block gives."""

from collections.abc import Callable, Mapping, Sequence
from math import cos, pi
from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.calibration.algorithms.gptq import GPTQ
from blockscale.calibration.algorithms.learned.samples import Row, Sample, Samples
from blockscale.calibration.algorithms.learned.stage import Stage
from blockscale.calibration.algorithms.learned.weight import LearnedWeight, LearningRates
from blockscale.calibration.algorithms.mse import MSE
from blockscale.calibration.algorithms.search import Search
from blockscale.core.format import Format
from blockscale.core.work import Progress
from blockscale.ops.batching import within_rows
from blockscale.ops.quantize import quantize
from blockscale.ops.tensor import QTensor

Values = Mapping[str, Tensor]  # {plan.name: what the codes of its weight mean}
Error = Callable[[Stage, Values, Sample], Tensor]  # a number that should be small


def squared_error(stage: Stage, values: Values, sample: Sample) -> Tensor:
    """The sum of squared errors of what the block gives; what has no finite target is left out."""
    target = sample.target.float()
    away = stage.run(values, sample.call).float() - target
    return torch.where(target.isfinite(), away, 0.0).square().sum()


def divergence(stage: Stage, values: Values, sample: Sample) -> Tensor:
    """The sum over places of the Kullback-Leibler divergence of what logits say from what they
    should say; places whose target is not finite are left out.

    What a model's loss grows by is nearly this, if it says what the data do. Hinton et al. 2015,
    arXiv 1503.02531, section 2, at temperature 1.
    """
    target = sample.target.float()
    weight = target.isfinite().all(-1, keepdim=True)
    goal = torch.where(weight, target, 0.0).log_softmax(-1)
    away = goal - stage.run(values, sample.call).float().log_softmax(-1)
    each = (goal.exp() * away).sum(-1)
    return torch.where(weight[..., 0], each, 0.0).sum()


class DescentSettings(NamedTuple):
    """How long and how far.

    steps: of the descent; patience: checks without a better one after which it ends, 0: never
    rate: what offsets could move in all steps together, in gaps, if each were as large as the root
        mean square; factors, tables: the same for those, as parts of it
    positions: places of the output, such as tokens, that a step looks at
    checks: how often the error is measured on the same samples; the best of those is kept
    half: products in bfloat16 while it descends, not where errors are measured
    error: what is to be small
    rising: part of the steps in which rates rise, before they fall
    inside: how far a weight may lie from the code it begins with, in gaps
    """

    steps: int = 200
    rate: float = 0.25
    factors: float = 0.5
    tables: float = 0.5
    positions: int = 4096
    checks: int = 10
    patience: int = 0
    half: bool = False
    error: Error = squared_error
    rising: float = 0.0
    inside: float = 0.49


def error_over(
    stage: Stage,
    values: Values,
    samples: Samples,
    rows: Sequence[Row],
    error: Error = squared_error,
) -> float:
    """The same over some rows."""
    with torch.no_grad():
        return samples.sum_of(lambda part: float(error(stage, values, part)), rows)


def learn(
    stage: Stage,
    weights: Mapping[str, LearnedWeight],
    samples: Samples,
    settings: DescentSettings,
    seed: int,
    progress: Progress | None = None,
) -> list[float]:
    """Leave the weights as the best of all checks found them; returns the errors that checks saw.

    Rates fall along half a cosine (Loshchilov and Hutter 2017, arXiv 1608.03983, section 3).
    """
    values = {name: weight.value for name, weight in weights.items()}
    rows = _evenly(samples, settings.positions)
    device = next(iter(values.values())).device.type
    every = max(settings.steps // max(settings.checks, 1), 1)
    errors = [error_over(stage, values, samples, rows, settings.error)]
    best, least, idle = _states(weights), errors[0], 0
    batches = samples.batches(settings.positions, seed)
    for count in range(1, settings.steps + 1):
        with torch.autocast(device, torch.bfloat16, enabled=settings.half):
            _descend(stage, values, samples, next(batches), settings.error)
        _move(weights, _rates(settings, count - 1))
        if progress is not None:
            progress.advance()
        if count % every and count < settings.steps:
            continue
        errors.append(error_over(stage, values, samples, rows, settings.error))
        idle += 1
        if errors[-1] < least:
            best, least, idle = _states(weights), errors[-1], 0
        if idle == settings.patience > 0:
            break
    for name, weight in weights.items():
        weight.restore(best[name])
    return errors


def _descend(
    stage: Stage, values: Values, samples: Samples, rows: Sequence[Row], error: Error
) -> None:
    """Give the values their gradients."""
    with torch.enable_grad():
        samples.descend(lambda part: error(stage, values, part), rows, values)


def _move(weights: Mapping[str, LearnedWeight], rates: LearningRates) -> None:
    for weight in weights.values():
        if weight.value.grad is not None:  # None: the calls of this step did not reach it
            weight.step(rates)


def _rates(settings: DescentSettings, count: int) -> LearningRates:
    """Those of a step, which add up to what the settings say."""
    rising = round(settings.rising * settings.steps)
    height = 1 + cos(pi * max(count - rising, 0) / (settings.steps - rising))
    height *= min((count + 1) / (rising + 1), 1.0)
    offsets = settings.rate * height / settings.steps
    return LearningRates(offsets, offsets * settings.factors, offsets * settings.tables)


def _states(weights: Mapping[str, LearnedWeight]) -> dict[str, tuple[Tensor, ...]]:
    return {name: weight.state() for name, weight in weights.items()}


def _evenly(samples: Samples, positions: int) -> list[Row]:
    """Rows of about so many positions, from the first to the last."""
    every = sum(map(samples.positions, samples.rows))
    return samples.rows[:: max(every // positions, 1)]


# Which of several codes leave the least error, without measuring hopeless ones to the end.

HOPELESS = 1.5  # times the least error so far


def least(
    stage: Stage,
    candidates: Mapping[str, Mapping[str, QTensor]],
    samples: Samples,
    positions: int,
    error: Error = squared_error,
) -> str:
    """The candidate with the least error over all samples; of equal ones the first.

    They are measured about `positions` at a time. One with HOPELESS times the least error of what
    was measured so far drops out; if one is left, that is it.
    """
    errors = dict.fromkeys(candidates, 0.0)
    values = {
        kind: {name: q.dequantize() for name, q in codes.items()}
        for kind, codes in candidates.items()
    }
    for rows in samples.in_order(positions):
        for kind in errors:
            errors[kind] += error_over(stage, values[kind], samples, rows, error)
        best = min(errors.values())
        errors = {kind: each for kind, each in errors.items() if each <= HOPELESS * best}
        if len(errors) == 1:
            break
    return min(errors, key=errors.__getitem__)


# Where learned rounding begins, and what it must not be worse than.

STARTS = ("gptq", "search", "mse", "absmax")


def start_of(
    kind: str, weight: Tensor, fmt: Format, gram: Tensor | None, layer: str
) -> tuple[QTensor, list[str]]:
    """A weight [n, k] float32 by one of STARTS -> its codes, and notes; by a simpler one where that
    one cannot serve the format, or knows nothing of the inputs."""
    if kind == "absmax" or fmt.element.learned:  # a table is learned with the codes themselves
        return quantize(weight, fmt), []
    if kind == "gptq" and gram is not None and _in_columns(weight, fmt):
        return GPTQ().quantize(weight, fmt, gram, layer)
    if kind == "search" and gram is not None:
        return Search().quantize(weight, fmt, gram, layer)
    return MSE().quantize(weight, fmt, None, layer)


def _in_columns(weight: Tensor, fmt: Format) -> bool:
    """Whether columns can be rounded one after the other: no block over the flattened weight ends
    within a row."""
    return not (fmt.block.flat and within_rows(fmt, weight.shape).block.flat)
