# SPDX-License-Identifier: BSD-3-Clause
"""The least error of several codes."""

import pytest

import blockscale as bs
from blockscale.calibration.algorithms.learned import race
from blockscale.calibration.algorithms.learned.race import least
from blockscale.calibration.algorithms.learned.samples import Samples
from blockscale.calibration.algorithms.learned.stage import Stage
from tests.calibration.algorithms.learned.tasks import task_of, weights_of


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
