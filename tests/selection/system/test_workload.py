# SPDX-License-Identifier: BSD-3-Clause
"""Workloads: what is measured of them but time, which is known here."""

import math

import pytest
import torch

import blockscale as bs
from blockscale.selection.system import workload as module
from blockscale.selection.system.workload import (
    Measured,
    PerformanceRequirements,
    QuantizationWorkload,
    measure,
)


@pytest.fixture
def _times_that_are_known(monkeypatch):
    times = {"": 4.0, "mxfp4": 1.0, "int8_channel": 2.0, "int8_channel x int8_token": 3.0}
    seen = []

    def race(calls):
        seen.append(torch.get_num_threads())
        for run in calls.values():
            run()
        return {key: times[key] / torch.get_num_threads() for key in calls}

    monkeypatch.setattr(module, "race", race)


@pytest.mark.usefixtures("_times_that_are_known")
def test_what_is_measured():
    names = ("int8_channel", "int8_channel x int8_token", "mxfp4")
    work = QuantizationWorkload(5, 64, 32, names)
    threads = torch.get_num_threads()
    for tried in ((2, 1), (1, 2)):  # one of them ends with another number
        found = measure(work, tried)
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


@pytest.mark.usefixtures("_times_that_are_known")
def test_a_weight_that_is_given():
    weight = torch.ones(8, 64)
    [found] = measure(QuantizationWorkload(2, 64, 8, ("int8_channel",), weight=weight))
    assert found.sqnr > 100
    with pytest.raises(ValueError, match=r"expected a weight \(8, 32\), found \(8, 64\)"):
        QuantizationWorkload(2, 32, 8, weight=weight).layer()
    with pytest.raises(ValueError, match="must be >= 1"):
        QuantizationWorkload(0, 32, 8).layer()


@pytest.mark.usefixtures("_times_that_are_known")
def test_requirements():
    found = Measured("mxfp4", 1.0, 0.5, 100, 20.0, 1)
    assert PerformanceRequirements().met(found)
    assert PerformanceRequirements(1.0, 100, 20.0).met(found)
    for bound in ({"seconds": 0.9}, {"bytes": 99}, {"sqnr": 20.1}):
        assert not PerformanceRequirements(**bound).met(found)


@pytest.mark.usefixtures("_times_that_are_known")
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
    found = {each.format: each for each in measure(work)}
    assert found["int8_channel"].sqnr > found["mxfp4"].sqnr > 10
    assert found["mxfp4"].bytes == bs.quantize(layer.weight.flatten(1), "mxfp4").nbytes
    with pytest.raises(ValueError, match="unknown operation 'lstm'; choose from linear, conv2d"):
        QuantizationWorkload(5, 64, 32, operation="lstm").layer()


# Estimates against the tensors themselves.


@pytest.mark.parametrize("fmt", ["int8", "mxfp4", "nvfp4", "uint4", "int3:group10:fp16"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_is_exact(fmt, dtype):
    x = torch.randn(7, 90).to(dtype)
    saved = bs.estimate_memory_savings(fmt, x.shape, dtype)
    assert saved == 1 - bs.quantize(x, fmt).nbytes / x.nbytes
    assert bs.estimate_memory_savings("int16", (1, 1)) < 0.5
    assert bs.estimate_memory_savings("int8", (1, 1)) < 0  # the scale is larger than what is saved


def test_nothing_to_save():
    with pytest.raises(ValueError, match="has no elements, so there is nothing to save"):
        bs.estimate_memory_savings("int8", (0, 3))


def test_accuracy_is_measured():
    torch.manual_seed(0)
    x = torch.randn(8, 96)
    x[0, 0] = 100.0
    for fmt in ("mxfp4", "int8", bs.QuantizationParams(bs.parse("int8"), torch.tensor([[0.01]]))):
        found = bs.estimate_accuracy_impact(fmt, x)
        y = bs.QuantizationParams.of(fmt).quantize(x).dequantize().double()
        noise = (x.double() - y).square().sum()
        expected = 10 * math.log10(float(x.double().square().sum() / noise))
        assert found.sqnr == pytest.approx(expected, rel=1e-9)
        assert found.max_error == float((x.double() - y).abs().max())
    beyond = int((x.abs() > 1.27).sum()), int((x.abs() > 1.275).sum())  # what rounds back is within
    assert min(beyond) <= found.saturated * x.numel() / 100 <= max(beyond)
    better, worse = (bs.estimate_accuracy_impact(f, x).sqnr for f in ("int8_channel", "int8"))
    assert better > worse


@pytest.mark.some(6)
@pytest.mark.parametrize(
    ("fmt", "scheme", "same"),
    [("int4", "symmetric", "int4:tensor:fp32"), ("uint8", "asymmetric", "uint8"),
     ("int8", "channel_wise", "int8_channel"), ("int4", "block_wise", "int4:group128:fp32"),
     ("int4", "logarithmic", "log4:tensor:fp32"), ("int8", "linear", "int8")],
)  # fmt: skip
def test_accuracy_of_a_scheme(fmt, scheme, same):
    expected = bs.estimate_accuracy_impact(same)
    assert bs.estimate_accuracy_impact(fmt, scheme) == expected
    x = torch.randn(4, 128)
    found = bs.estimate_accuracy_impact(fmt, x, scheme=scheme)
    assert found == bs.estimate_accuracy_impact(same, x)


def test_a_scheme_that_is_none():
    with pytest.raises(ValueError, match="unknown scheme 'row'; choose from linear, symmetric, as"):
        bs.estimate_accuracy_impact("int8", "row")


def test_a_tensor_by_itself():
    x = torch.randn(4, 256)
    q = bs.auto_quantize_tensor(x, 4)
    assert q.format == bs.create_optimal_params(x, 4).format
    assert q.shape == x.shape


@pytest.mark.parametrize(
    ("fmt", "bits"),
    [("int8", 8), ("int8_channel", 8), ("int4:group32:fp16", 4.5), ("nvfp4", 4.5), ("mxfp4", 4.25),
     ("uint4:group10:fp32:asym", 4 + 64 / 10), ("int8:tile128x128:fp32", 8 + 32 / 128**2)],
)  # fmt: skip
def test_savings_of_a_matrix_without_end(fmt, bits):
    assert bs.estimate_memory_savings(fmt) == pytest.approx(1 - bits / 32, abs=1e-12)
    assert bs.estimate_memory_savings(fmt, dtype=torch.bfloat16) == pytest.approx(1 - bits / 16)


@pytest.mark.slow
def test_without_data_a_weight_is_measured():
    sqnr = [bs.estimate_accuracy_impact(f).sqnr for f in ("int8_channel", "int8", "mxfp4")]
    assert sqnr == sorted(sqnr, reverse=True)
    assert bs.estimate_accuracy_impact("int8") == bs.estimate_accuracy_impact("int8")


@pytest.mark.slow
@pytest.mark.parametrize(
    "fmt",
    ["int8", "uint8", "mxfp4", "nvfp4", "int4:tensor:fp32", "int4", "binary:tensor:fp32",
     "ternary:group64:fp32", "log4:tensor:fp32", "uint4:group64:fp16:offset"],
)  # fmt: skip
def test_a_tensor_in_a_named_format(fmt):
    torch.manual_seed(0)
    x = torch.randn(4, 256)
    x[0, 0] = 8.0
    q = bs.auto_quantize_tensor(x, fmt)
    assert q.format == bs.parse(fmt)

    def error(of):
        return float((of.dequantize() - x).double().square().sum())

    assert error(q) <= error(bs.quantize(x, fmt))
    if fmt == "int4:tensor:fp32":
        assert error(q) < 0.9 * error(bs.quantize(x, fmt))  # the outlier is cut off


def test_numbers_and_shapes():
    q = bs.auto_quantize_tensor([1, 2, 3, 4], "int8", (2, 2))
    assert torch.equal(q.codes, bs.quantize(torch.tensor([[1.0, 2], [3, 4]]), "int8").codes)
    with pytest.raises(ValueError, match=r"4 numbers do not fill the shape \(3, 2\)"):
        bs.auto_quantize_tensor([1, 2, 3, 4], "int8", (3, 2))
    with pytest.raises(ValueError, match="expected a tensor or lists of numbers, found 'one'"):
        bs.auto_quantize_tensor("one", "int8")
    given = bs.QuantizationParams(bs.parse("int8"), torch.tensor([[0.5]]))
    assert torch.equal(bs.auto_quantize_tensor(torch.ones(1, 2), given).scale, given.scale)
