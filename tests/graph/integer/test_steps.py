# SPDX-License-Identifier: BSD-3-Clause
"""The steps of an integer model."""

from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import blockscale as bs
from blockscale.graph.integer import steps
from blockscale.graph.integer.convert import to_integer
from tests.support.integer_models import (
    INT8,
)


def whole(value: int) -> Tensor:
    return torch.tensor(value, dtype=torch.int32)


def test_ties() -> None:
    """Sums that end half way between two codes, of both parities and signs: half to even."""
    layer = nn.Linear(1, 1)
    with torch.no_grad():
        layer.weight.fill_(1.0)
        layer.bias.fill_(0.5)
    model = nn.Sequential(layer)
    bs.quantize_(model, bs.Recipe("int8:tensor:pow2/ceil", INT8, INT8))
    model[0].input.set_scale(torch.tensor([0.25]))
    model[0].output.set_scale(torch.tensor([1.0]))
    x = torch.arange(-31, 31).reshape(-1, 1) / 4
    found = to_integer(model, x)(x)
    assert torch.equal(found, model(x))
    assert found.flatten().tolist() == [
        float(round(Fraction(v) + Fraction(1, 2))) for v in x.flatten().tolist()
    ]
    assert ((x + 0.5).frac().abs() == 0.5).sum() == 15  # the ties


def test_from_floats_to_codes_and_back() -> None:
    fmt = bs.parse("uint8:tensor:pow2/nearest:asym")
    quantize = steps.Quantize(fmt, torch.tensor([[0.25]]), whole(3))
    codes = quantize(torch.tensor([[0.0, 0.25, 0.375, -9.0, 99.0]]))
    assert codes.tolist() == [[3, 4, 5, 0, 255]]  # 1.5 steps are 2: half to even
    back = steps.Dequantize(whole(-2), 3)(codes)
    assert back.tolist() == [[0.0, 0.25, 0.5, -0.75, 63.0]]


def test_requantizing_is_a_shift_between_two_zero_points() -> None:
    fmt = bs.parse("int8:tensor:pow2/nearest")
    step = steps.Requantize(whole(2), fmt, (10, -3))
    codes = torch.tensor([10, 14, 12, 16, 18, 900, -900], dtype=torch.int32)
    # (c - 10) / 4, half to even, less 3; then it saturates
    assert step(codes).tolist() == [-3, -2, -3, -1, -1, 127, -127]
    assert "shift 2" in repr(step)
    several = steps.Requantize(torch.tensor([-1, 4], dtype=torch.int32), fmt, (0, 0))
    assert "shift -1 to 4" in repr(several)


def test_layers_of_integers_have_the_sums_of_float64() -> None:
    codes, weight = torch.randint(0, 255, (5, 7)), torch.randint(-127, 128, (3, 7))
    bias = torch.tensor([5, -6, 7], dtype=torch.int32)
    linear = steps.IntegerLinear(weight.to(torch.int8), bias, 128)
    expected = (codes.double() - 128) @ weight.double().t() + bias
    found = linear(codes.to(torch.uint8))
    assert found.dtype == torch.int32
    assert found.tolist() == expected.tolist()
    kernel = torch.randint(-9, 10, (4, 2, 3), dtype=torch.int8)
    settings = steps.ConvSettings([1], [0], [1], 1)
    conv = steps.IntegerConv(kernel, None, 2, [1, 1], settings)
    x = torch.randint(-9, 10, (2, 2, 6), dtype=torch.int8)
    padded = F.pad(x.double() - 2, (1, 1))  # zeros are those of values, not of codes
    assert conv(x).tolist() == F.conv1d(padded, kernel.double()).tolist()


def test_bounds_sums_and_windows() -> None:
    clamp = steps.Clamp(whole(-2), torch.tensor([1, 5], dtype=torch.int32))
    assert clamp(torch.tensor([[-9, -9], [9, 9]], dtype=torch.int8)).tolist() == [[-2, -2], [1, 5]]
    assert clamp(torch.zeros(1, 2, dtype=torch.int8)).dtype == torch.int8
    add = steps.Add((whole(0), whole(3)), (1, -1))
    assert add(torch.tensor([5]), torch.tensor([5])).tolist() == [4 + 6 * 8]
    pool = steps.SumPool(1, steps.Windows([2, 2], [2, 2], [0, 0]), (2, 2))
    assert pool(torch.tensor([[[1, 2], [3, 5]]])).tolist() == [[[7]]]
    with pytest.raises(ValueError, match=r"made for inputs of size \(2, 2\), found \(4, 2\)"):
        pool(torch.ones(1, 4, 2, dtype=torch.int32))


@pytest.mark.parametrize(
    "step",
    [
        steps.Clamp(whole(0), whole(9)),
        steps.Requantize(whole(3), bs.parse("int8:tensor:pow2/nearest"), (0, 0)),
        steps.IntegerLinear(torch.ones(2, 2, dtype=torch.int8), None, 0),
        steps.Dequantize(whole(1), 0),
    ],
    ids=lambda step: type(step).__name__,
)
def test_numbers_of_a_step_are_buffers_of_integers(step: nn.Module) -> None:
    buffers = dict(step.named_buffers())
    assert buffers
    assert not any(buffer.is_floating_point() for buffer in buffers.values())
    assert set(step.state_dict()) == set(buffers)
