# SPDX-License-Identifier: BSD-3-Clause
"""Every verb of the system: a thin call to what the rest does."""

from dataclasses import replace

import pytest
import torch

import blockscale as bs
from blockscale.kernels.registry import unavailable
from blockscale.selection.system import operations, workload
from blockscale.selection.system.workload import PerformanceRequirements, QuantizationWorkload


@pytest.fixture
def system():
    return bs.create_quantization_system()


@pytest.fixture
def _known(monkeypatch):
    def race(calls):
        return {key: 1.0 + i for i, key in enumerate(calls)}

    monkeypatch.setattr(operations, "race", race)
    monkeypatch.setattr(workload, "race", race)


def test_what_it_is_on(system):
    assert isinstance(system, bs.QuantizationSystem)
    assert repr(system) == "QuantizationSystem('cpu')"
    assert system.hardware_features() is system.hardware_features()
    assert system.hardware_features().processor == bs.hardware().processor
    assert system.has_acceleration() == (unavailable("cpu") is None)
    assert not bs.QuantizationSystem("meta").has_acceleration()
    with pytest.raises(RuntimeError):
        bs.QuantizationSystem("no such device")


def test_tensors(system):
    x = torch.randn(4, 64)
    q = system.quantize(x, "mxfp4")
    assert torch.equal(q.packed, bs.quantize(x, "mxfp4").packed)
    assert torch.equal(system.dequantize(q), q.dequantize())
    assert system.dequantize(q, torch.bfloat16).dtype == torch.bfloat16
    other = system.quantize(torch.randn(64, 3), "int8")
    product = q.dequantize() @ other.dequantize()
    assert torch.allclose(system.qmatmul(q, other), product)
    kept = system.qmatmul(q, other, bs.QuantizationParams.int8_symmetric())
    assert torch.equal(kept.packed, bs.quantize(q @ other, "int8").packed)
    zeros = system.create_quantized_tensor((2, 3, 4), bs.QuantizationParams.int8_symmetric())
    assert zeros.shape == (2, 3, 4)
    assert torch.equal(zeros.dequantize(), torch.zeros(2, 3, 4))


@pytest.mark.slow
def test_samples(system):
    samples = [torch.tensor([1.0, -4.0, 3.0]), torch.tensor([4.0, 5.08, 6.0])]
    params = system.calibrate_from_samples(samples, "int8", "min_max")
    assert params.scale.item() == pytest.approx(6 / 127)
    assert system.calibrate_from_samples(iter(samples)).scale is not None
    with pytest.raises(ValueError, match="no samples"):
        system.calibrate_from_samples([])
    with pytest.raises(ValueError, match="unknown observer 'median'; choose from"):
        system.calibrate_from_samples(samples, "int8", "median")


@pytest.mark.usefixtures("_known")
def test_what_is_fast(system):
    work = QuantizationWorkload(4, 64, 32, ("int8_channel", "mxfp4"))
    found = system.recommendations(work)
    assert [each.format for each in found] == ["int8_channel", "mxfp4"]
    small = PerformanceRequirements(bytes=found[1].bytes)
    assert [each.format for each in system.recommendations(work, small)] == ["mxfp4"]
    assert system.auto_tune(work, threads=(1,)) == replace(found[0], threads=1)
    assert system.auto_tune(work, small, threads=(1,)).format == "mxfp4"
    with pytest.raises(ValueError, match="none of 2 measurements is within"):
        system.auto_tune(work, PerformanceRequirements(sqnr=400.0), threads=(1,))
    assert system.optimal_block_size() == operations.optimal_block_size() == 64
    times = system.benchmark_operations(("mxfp4",), (4, 64))
    assert [each.operation for each in times] == ["quantize", "dequantize", "fake_quantize"]
    hints = system.performance_hints(work)
    assert hints.formats == ("int8_channel", "mxfp4")
    assert set(hints.rows) == {1, 16, 4}
    assert hints.threads == torch.get_num_threads()


@pytest.mark.parametrize(
    "verb", ["recommendations", "auto_tune", "benchmark_operations", "memory_usage"]
)
def test_times_of_other_devices(verb):
    system = bs.QuantizationSystem("meta")
    arguments = (QuantizationWorkload(1, 8, 8),) if verb in ("recommendations", "auto_tune") else ()
    with pytest.raises(ValueError, match="only on the CPU here, not on meta: use `blockscale"):
        getattr(system, verb)(*arguments)
