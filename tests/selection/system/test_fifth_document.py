# SPDX-License-Identifier: BSD-3-Clause
"""The tests at the end of the fifth founding document (seeds/004), translated one by one."""

import pytest
import torch

import blockscale as bs
from blockscale.selection.system import QuantizationWorkload


def test_create_quantization_system() -> None:
    system = bs.create_quantization_system("cpu")
    assert str(system.device)


def test_create_optimal_params() -> None:
    accurate = bs.create_optimal_params("int8", True)
    assert accurate.format.element.name == "int8" and not accurate.format.asym
    fast = bs.create_optimal_params("uint8", False)
    assert fast.format.element.name == "uint8" and fast.format.asym


def test_quantization_system_creation() -> None:
    assert bs.QuantizationSystem("cpu").hardware_features().cores >= 1


def test_quantization_system_operations() -> None:
    system = bs.QuantizationSystem("cpu")
    data = [1.0, 2.0, 3.0, 4.0]
    quantized = system.quantize(data, bs.QuantizationParams.int8_symmetric())
    back = system.dequantize(quantized)
    assert len(back) == len(data)
    assert torch.equal(quantized.codes, torch.tensor([32, 64, 95, 127], dtype=torch.int8))


@pytest.mark.slow
def test_auto_quantize_tensor() -> None:
    tensor = bs.auto_quantize_tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "int8", (2, 3), "cpu")
    assert tensor.shape == (2, 3)
    assert tensor.format.element.name == "int8"
    own_order = bs.auto_quantize_tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], (2, 3), "cpu", "int8")
    assert torch.equal(own_order.codes, tensor.codes) and own_order.format == tensor.format


def test_memory_savings_estimation() -> None:
    for name, expected in {"int8": 0.75, "int4": 0.875, "binary": 0.96875}.items():
        assert abs(bs.estimate_memory_savings(name) - expected) < 0.01


@pytest.mark.slow
def test_accuracy_impact_estimation() -> None:
    accuracy = bs.estimate_accuracy_impact("int8", "symmetric").cosine
    assert accuracy >= 0.90
    assert bs.estimate_accuracy_impact("int4", "symmetric").cosine < accuracy
    channels = bs.estimate_accuracy_impact("int8", "channel_wise").cosine
    assert channels >= bs.estimate_accuracy_impact("int8", "linear").cosine


def test_quantization_system_calibration() -> None:
    samples = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    params = bs.QuantizationSystem("cpu").calibrate_from_samples(samples, "int8", "min_max")
    assert params.format.element.name == "int8"
    assert torch.equal(params.scale.flatten(), torch.tensor([6.0]) / 127)


def test_quantization_system_benchmarking() -> None:
    results = bs.QuantizationSystem("cpu").benchmark_operations(("int8",), (8, 64))
    assert results and all(each.seconds > 0 for each in results)


def test_quantization_system_tensor_creation() -> None:
    params = bs.QuantizationParams.int8_symmetric()
    tensor = bs.QuantizationSystem("cpu").create_quantized_tensor((2, 3, 4), params)
    assert tensor.shape == (2, 3, 4) and tensor.format == params.format


@pytest.mark.slow
def test_performance_hints() -> None:
    system = bs.QuantizationSystem("cpu")
    size = system.optimal_block_size()
    assert size > 0 and size == system.optimal_block_size()  # one answer, however busy
    work = QuantizationWorkload(rows=2, inputs=32, outputs=16, candidates=("int8_channel",))
    hints = system.performance_hints(work)
    assert hints.formats == ("int8_channel",)  # types and schemes in one
    assert set(hints.rows) == {1, 2, 16} and hints.block_size == size
