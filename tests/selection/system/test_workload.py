# SPDX-License-Identifier: BSD-3-Clause
"""Workloads: what is measured of them but time, which is known here."""

import pytest
import torch

import blockscale as bs
from blockscale.selection.system import workload as module
from blockscale.selection.system.workload import (
    Measured,
    PerformanceRequirements,
    QuantizationWorkload,
    measured,
)


@pytest.fixture(autouse=True)
def _times_that_are_known(monkeypatch):
    times = {"": 4.0, "mxfp4": 1.0, "int8_channel": 2.0, "int8_channel x int8_token": 3.0}
    seen = []

    def race(calls):
        seen.append(torch.get_num_threads())
        for run in calls.values():
            run()
        return {key: times[key] / torch.get_num_threads() for key in calls}

    monkeypatch.setattr(module, "race", race)


def test_what_is_measured():
    names = ("int8_channel", "int8_channel x int8_token", "mxfp4")
    work = QuantizationWorkload(5, 64, 32, names)
    threads = torch.get_num_threads()
    for tried in ((2, 1), (1, 2)):  # one of them ends with another number
        found = measured(work, tried)
        assert torch.get_num_threads() == threads
    assert [(e.format, e.threads, e.seconds) for e in found[:3]] == [
        ("mxfp4", 2, 0.5), ("mxfp4", 1, 1.0), ("int8_channel", 2, 1.0),
    ]  # fmt: skip
    assert {e.format: e.relative for e in found} == {
        "mxfp4": 0.25, "int8_channel": 0.5, "int8_channel x int8_token": 0.75,
    }  # fmt: skip
    weight = work.layer().weight
    for each in found:
        fmt = each.format.partition(" x ")[0]
        assert each.bytes == bs.quantize(weight, fmt).nbytes
    exact = {each.format: each.sqnr for each in found}
    assert exact["int8_channel"] > exact["int8_channel x int8_token"] > exact["mxfp4"] > 10


def test_a_weight_that_is_given():
    weight = torch.ones(8, 64)
    [found] = measured(QuantizationWorkload(2, 64, 8, ("int8_channel",), weight=weight))
    assert found.sqnr > 100
    with pytest.raises(ValueError, match=r"expected a weight \(8, 32\), found \(8, 64\)"):
        QuantizationWorkload(2, 32, 8, weight=weight).layer()
    with pytest.raises(ValueError, match="sizes of at least 1"):
        QuantizationWorkload(0, 32, 8).layer()


def test_requirements():
    found = Measured("mxfp4", 1.0, 0.5, 100, 20.0, 1)
    assert PerformanceRequirements().met(found)
    assert PerformanceRequirements(1.0, 100, 20.0).met(found)
    for bound in ({"seconds": 0.9}, {"bytes": 99}, {"sqnr": 20.1}):
        assert not PerformanceRequirements(**bound).met(found)


@pytest.mark.parametrize(
    ("operation", "weight", "x"),
    [("linear", (32, 64), (5, 64)), ("conv2d", (32, 64, 3, 3), (5, 64, 6, 6)),
     ("embedding", (64, 32), (5,))],
)  # fmt: skip
def test_operations(operation, weight, x):
    work = QuantizationWorkload(5, 64, 32, ("int8_channel", "mxfp4"), operation=operation, size=6)
    layer = work.layer()
    assert tuple(layer.weight.shape) == weight and tuple(work.example().shape) == x
    assert torch.equal(work.example(), work.example())
    found = {each.format: each for each in measured(work)}
    assert found["int8_channel"].sqnr > found["mxfp4"].sqnr > 10
    assert found["mxfp4"].bytes == bs.quantize(layer.weight.flatten(1), "mxfp4").nbytes
    with pytest.raises(ValueError, match="unknown operation 'lstm'; choose from linear, conv2d"):
        QuantizationWorkload(5, 64, 32, operation="lstm").layer()
