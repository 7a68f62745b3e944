# SPDX-License-Identifier: BSD-3-Clause
"""Comparisons that the cells rely on see what they must see."""

import math

import torch
from torch import nn

import blockscale as bs
from tests.models import states


def small(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 32), nn.LayerNorm(32))


def test_one_bit_is_a_difference():
    a, b = small(), small()
    assert states.differences(a, b) == []
    with torch.no_grad():
        b[0].weight.view(torch.int32)[3, 5] ^= 1
    assert states.differences(a, b) == ["0.weight"]


def test_minus_zero_and_nan_are_compared_by_their_bits():
    zero, minus, nan = torch.tensor([0.0]), torch.tensor([-0.0]), torch.tensor([math.nan])
    assert states.unequal_bits(zero, minus)
    assert not states.unequal_bits(nan, nan.clone())
    assert states.unequal_bits(zero, zero.double())
    assert states.unequal_bits(zero, zero[None])
    assert not states.unequal_bits(torch.empty(0), torch.empty(0))


def test_a_quantized_model_differs_from_a_float_one_in_names():
    a, b = small(), small()
    bs.quantize_(b, "mxfp4")
    found = states.differences(a, b)
    assert "0.weight (in one only)" in found
    assert "0.weight.codes (in one only)" in found


def test_a_twin_computes_what_the_codes_mean():
    model = small()
    bs.quantize_(model, "int8")
    twin = states.twin(small(5), model)
    assert torch.equal(twin[0].weight, model[0].weight.dequantize())
    assert torch.equal(twin[0].bias, model[0].bias)
    x = {"input": torch.randn(3, 64)}
    assert states.distance(states.run(model, x), states.run(twin, x)) < 1e-5


def test_distance():
    x = [torch.tensor([3.0, 4.0])]
    assert states.distance([torch.tensor([3.0, 4.5])], x) == 0.1
    assert states.distance(x, x) == 0
    assert states.distance(x, []) == math.inf
    assert states.distance([torch.ones(3)], x) == math.inf
    assert math.isnan(states.distance([torch.tensor([math.nan, 4.0])], x))


def test_bytes():
    model = small()
    assert states.float_bytes(model) == 4 * (64 * 32 + 32 + 64)
    bs.quantize_(model, "mxfp4")
    assert states.float_bytes(model) == 4 * (32 + 64)
    assert states.quantized_bytes(model) == 64 * 32 // 2 + 64 * 32 // 32
