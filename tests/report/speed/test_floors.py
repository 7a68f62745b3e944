"""The least time of a linear layer: its bytes over bandwidth, or its operations over the rate."""

import pytest

from blockscale.report.speed import floors, tables
from tests.support.invented_speed import invented


def test_floors_follow_bytes_or_operations():
    run = invented()
    case = run["cases"][2]
    assert floors.floors(run) == {"bfp8 x bfp8": {1: pytest.approx(1e7 / 50e9 / 0.01)}}
    case["contestants"][2]["bytes"] = 1  # then onnxruntime's rate counts, in integers four times
    assert floors.floors(run) == {"bfp8 x bfp8": {1: pytest.approx(0.01 / 4)}}
    case["contestants"][2]["name"] = "mxfp4 weights"
    assert floors.floors(run) == {"mxfp4 weights": {1: pytest.approx(0.01)}}
    assert floors.floors(run | {"cases": run["cases"][1:]}) == {}
    assert tables.predicted(run | {"cases": []}).rows == []


def test_rates_are_those_of_the_best():
    run = invented()
    assert floors.bandwidth(run) == 50e9
    assert floors.float_rate(run) == 2 * 4096**2 / 1e-4  # onnxruntime's
    assert floors.float_rate(run | {"cases": []}) == floors.bandwidth(run | {"cases": []}) == 0.0
