# SPDX-License-Identifier: BSD-3-Clause
"""The descent: it finds better codes, keeps the best, ends early, and repeats itself."""

from itertools import pairwise

import pytest
import torch

import blockscale as bs
from blockscale.calibration.algorithms.gptq import GPTQ
from blockscale.calibration.algorithms.learned import loop
from blockscale.calibration.algorithms.learned import loop as race
from blockscale.calibration.algorithms.learned.loop import (
    DescentSettings,
    error_over,
    learn,
    least,
    squared_error,
    start_of,
)
from blockscale.calibration.algorithms.learned.samples import Sample, Samples
from blockscale.calibration.algorithms.learned.stage import Stage
from blockscale.calibration.algorithms.learned.weight import LearnedWeight, LearningRates
from blockscale.calibration.algorithms.mse import MSE
from blockscale.calibration.block_calls import BlockCall
from tests.calibration.algorithms.learned.tasks import task_of, weights_of

FAST = DescentSettings(steps=60, rate=0.5, positions=48, checks=6)


def learned(
    settings: DescentSettings = FAST, seed: int = 0
) -> tuple[list[float], dict[str, LearnedWeight], float]:
    """The errors of the checks, the weights as they were left, and their error at the end."""
    task = task_of("int3:group8:fp32")
    stage = Stage(task)
    samples = Samples(task.calls, task.targets, stage.as_it_is)
    weights = {
        name: LearnedWeight(w, bs.quantize(w, "int3:group8:fp32"))
        for name, w in weights_of(task).items()
    }
    with stage.quantizing():
        errors = learn(stage, weights, samples, settings, seed)
        values = {name: weight.value for name, weight in weights.items()}
        rows = loop._evenly(samples, settings.positions)
        return errors, weights, error_over(stage, values, samples, rows)


def test_the_error_falls_and_the_best_is_left() -> None:
    errors, _, at_the_end = learned()
    assert len(errors) == 7
    assert at_the_end == min(errors) < 0.6 * errors[0]


def test_the_best_is_left_when_it_gets_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bug: steps in the wrong direction; the start is the best then."""

    def uphill(settings: DescentSettings, done: int) -> LearningRates:
        return LearningRates(-0.05, -0.02, 0.0)

    monkeypatch.setattr(loop, "_rates", uphill)
    errors, weights, at_the_end = learned()
    assert errors[-1] > errors[0] == at_the_end
    start = weights_of(task_of("int3:group8:fp32"))
    for name, weight in weights.items():
        expected = bs.quantize(start[name], "int3:group8:fp32").dequantize()
        assert torch.equal(weight.value, expected)


def test_patience_ends_it_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_rates", lambda settings, done: LearningRates(-0.05, 0.0, 0.0))
    errors, _, _ = learned(FAST._replace(patience=2))
    assert len(errors) == 3


@pytest.mark.slow
def test_the_same_seed_gives_the_same_codes() -> None:
    (_, first, _), (_, again, _), (_, other, _) = learned(), learned(), learned(seed=1)
    assert all(torch.equal(first[n].value, again[n].value) for n in first)
    assert any(not torch.equal(first[n].value, other[n].value) for n in first)


def test_rates_add_up_and_fall() -> None:
    settings = DescentSettings(steps=40, rate=0.3, factors=0.5)
    rates = [loop._rates(settings, done) for done in range(40)]
    assert sum(r.offsets for r in rates) == pytest.approx(0.3, rel=0.05)
    assert all(a.offsets > b.offsets for a, b in pairwise(rates))
    assert rates[7].factors == rates[7].offsets * 0.5


def test_targets_that_are_not_finite_do_not_count() -> None:
    task = task_of("int3:group8:fp32")
    stage, values = Stage(task), weights_of(task)
    x = torch.randn(1, 3, 16)
    y = stage.run(values, BlockCall((x,), {})).detach()
    target = y + torch.tensor([1.0, 2.0, torch.nan])[None, :, None]
    error = squared_error(stage, values, Sample(BlockCall((x,), {}), target))
    assert float(error.detach()) == pytest.approx(16 * (1 + 4))


def test_products_in_bfloat16_come_near() -> None:
    errors, _, _ = learned(FAST._replace(half=True))
    assert min(errors) < 0.6 * errors[0]


def test_rates_may_rise_first() -> None:
    rates = [loop._rates(DescentSettings(steps=40, rising=0.2), done).offsets for done in range(40)]
    assert rates.index(max(rates)) == 8
    assert rates[:9] == sorted(rates[:9]) and rates[8:] == sorted(rates[8:], reverse=True)


def test_divergence_is_that_of_the_distributions() -> None:
    """Beside torch's own, in float64; a place without a target does not count."""
    task = task_of("int3:group8:fp32")
    stage, values = Stage(task), weights_of(task)
    x = torch.randn(1, 3, 16)
    given = stage.run(values, BlockCall((x,), {})).detach()
    target = torch.randn(1, 3, 16)
    target[0, 2, 5] = torch.nan
    found = loop.divergence(stage, values, Sample(BlockCall((x,), {}), target))
    pairs = given[0, :2].double().log_softmax(-1), target[0, :2].double().log_softmax(-1)
    expected = torch.nn.functional.kl_div(*pairs, reduction="sum", log_target=True)
    assert float(found.detach()) == pytest.approx(float(expected), rel=1e-5)
    same = loop.divergence(stage, values, Sample(BlockCall((x,), {}), given))
    assert abs(float(same.detach())) < 1e-5


def test_places_without_a_target_give_no_gradient() -> None:
    task = task_of("int3:group8:fp32")
    stage = Stage(task)
    values = {name: w.requires_grad_() for name, w in weights_of(task).items()}
    target = torch.full((1, 3, 16), torch.inf)
    loop.divergence(
        stage, values, Sample(BlockCall((torch.randn(1, 3, 16),), {}), target)
    ).backward()
    assert all(w.grad is not None and not w.grad.any() for w in values.values())


# The least error of several codes.


@pytest.mark.parametrize("order", [("int3", "int8", "int2"), ("int8", "int2", "int3")])
def test_the_finest_format_wins_whatever_the_order(order: tuple[str, ...]) -> None:
    task = task_of("int4:group8:fp32")
    stage = Stage(task)
    samples = Samples(task.calls, task.targets, stage.as_it_is)
    candidates = {
        name: {n: bs.quantize(w, f"{name}:group8:fp32") for n, w in weights_of(task).items()}
        for name in order
    }
    assert least(stage, candidates, samples, 12) == "int8"


def test_hopeless_ones_drop_out_and_near_ones_are_measured_to_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = task_of("int4:group8:fp32")
    stage = Stage(task)
    samples = Samples(task.calls, task.targets, stage.as_it_is)
    errors = {"a": [1.0, 1.0, 9.0], "b": [1.2, 1.2, 1.2], "c": [9.0]}
    asked: list[str] = []

    def error_over(_: Stage, values: dict[str, str], *rest: object) -> float:
        asked.append(values["x"])
        return errors[values["x"]].pop(0)

    class Named:
        def __init__(self, name: str):
            self.name = name

        def dequantize(self) -> str:
            return self.name

    monkeypatch.setattr(race, "error_over", error_over)
    monkeypatch.setattr(samples, "in_order", lambda _: iter([[], [], []]))
    candidates = {name: {"x": Named(name)} for name in errors}
    assert least(stage, candidates, samples, 12) == "b"  # type: ignore[arg-type]
    assert asked == ["a", "b", "c", "a", "b", "a", "b"]


# Where learned rounding begins.

WEIGHT = torch.randn(6, 16, generator=torch.Generator().manual_seed(0))
GRAM = torch.diag(torch.linspace(1, 4, 16)) + 0.5


@pytest.mark.parametrize(
    ("kind", "text", "gram", "expected"),
    [
        ("gptq", "int4:group8:fp32", GRAM, "gptq"),
        ("gptq", "int4:group8:fp32", None, "mse"),
        ("gptq", "int4:flat12:fp32", GRAM, "mse"),  # its blocks end within rows
        ("gptq", "int4:flat8:fp32", GRAM, "gptq"),
        ("mse", "int4:group8:fp32", GRAM, "mse"),
        ("absmax", "int4:group8:fp32", GRAM, "absmax"),
        ("gptq", "book2:group8:fp32", GRAM, "absmax"),
    ],
)
@pytest.mark.filterwarnings("ignore:no cpu kernel")
def test_starts(kind: str, text: str, gram: torch.Tensor | None, expected: str) -> None:
    fmt = bs.parse(text)
    found, _ = start_of(kind, WEIGHT, fmt, gram, "layer")
    algorithm = {"gptq": GPTQ(), "mse": MSE()}.get(expected)
    other = (
        bs.quantize(WEIGHT, fmt)
        if algorithm is None
        else algorithm.quantize(WEIGHT, fmt, gram, "layer")[0]
    )
    assert torch.equal(found.packed, other.packed)
    assert torch.equal(found.qparams.scale, other.qparams.scale)
