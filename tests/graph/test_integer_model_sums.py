# SPDX-License-Identifier: BSD-3-Clause
"""What is known of a layer's sums: how large they get, and their steps."""

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.graph import NotIntegerError, to_integer, with_integer_bias
from tests.support.integer_models import (
    INT8,
    PER_CHANNEL,
    check,
    linear,
    quantized,
)


@pytest.mark.slow
def test_a_bound_for_every_layer() -> None:
    """Beyond 2^24 float32 may round: told; beyond int32 it is an error."""
    model = nn.Sequential(nn.Linear(3000, 2, bias=False))
    nn.init.ones_(model[0].weight)
    bs.quantize_(model, bs.Recipe(INT8, INT8))
    model[0].input.set_scale(torch.tensor([0.5]))
    integer = to_integer(model, torch.zeros(1, 3000))
    codes = model[0].weight.tensor.codes
    assert [each.largest for each in integer.sums] == [int(codes.int().sum(1).max()) * 127]
    assert integer.sums[0].largest > 2**24
    assert (integer.sums[0].exact, integer.exact) == (False, False)
    x = torch.full((1, 3000), 63.5)
    assert (
        integer(x).tolist()
        == (codes.double().sum(1) * 63.5 * model[0].weight.scale.item())[None].tolist()
    )
    big = nn.Sequential(nn.Linear(300_000, 1, bias=False))
    nn.init.ones_(big[0].weight)
    bs.quantize_(big, bs.Recipe(INT8, INT8))
    big[0].input.set_scale(torch.tensor([0.5]))
    with pytest.raises(NotIntegerError, match="sums of '0' can reach 4838700000, more than int32"):
        to_integer(big, torch.zeros(1, 300_000))


@pytest.mark.slow
def test_exactness_ends_at_two_to_the_24() -> None:
    for more, exact in ((0, True), (1, False)):
        model = nn.Sequential(nn.Linear(1, 1))
        model[0].weight.data.fill_(1.0)  # 64 steps of 2^-6
        model[0].bias.data.fill_(-(2**24 - 64 * 127 + more) / 64)
        bs.quantize_(model, bs.Recipe("int8:tensor:pow2/ceil", INT8))
        model[0].input.set_scale(torch.tensor([1.0]))
        integer = to_integer(model, torch.zeros(1, 1))
        assert [(each.largest, each.exact) for each in integer.sums] == [(2**24 + more, exact)]


@pytest.mark.slow
def test_steps_beyond_float32() -> None:
    model = linear(scale=2.0**-120)
    model[0].bias.data.zero_()
    model[0].weight.scale.fill_(2.0**-40)
    with pytest.raises(NotIntegerError, match=r"sums of '0' have the step 2\^-160, outside"):
        to_integer(model, torch.zeros(1, 8))
    model[0].weight.scale.fill_(2.0**-29)  # the smallest that float32 holds, and it is exact
    model[2].bias.data.zero_()
    with torch.no_grad():
        for x in (torch.randn(20, 8), 1e-35 * torch.randn(20, 8)):
            assert torch.equal(to_integer(model, x)(x), model(x))


@pytest.mark.slow
@pytest.mark.some(2)
@pytest.mark.parametrize("weight", [PER_CHANNEL, "int8:channel0:e8m0", INT8])
def test_dead_channels(weight: str) -> None:
    """All weights of a channel are zero, so that its scale is 2^-126; its bias is not."""
    for rows in (slice(1, 3), slice(0, 5)):
        float_model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
        float_model[0].weight.data[rows] = 0
        x = torch.randn(7, 6)
        model = quantized(float_model, x, weight, INT8)
        check(model, x)
        offset = with_integer_bias(model)[0].bias - model[0].bias
        assert (offset.abs() < 2.0**-9).all()


@pytest.mark.filterwarnings("ignore:no cpu kernel runs:UserWarning")
def test_numbers_that_no_shift_gives() -> None:
    for weight, inputs in (
        ("int8:channel0:pow2/ceil:offset", INT8),
        ("uint8:channel0:pow2/ceil:asym(fp32)", INT8),
    ):
        model = nn.Sequential(nn.Linear(8, 4))
        bs.quantize_(model, bs.Recipe(weight, inputs))
        model[0].input.set_scale(torch.tensor([1.0]))
        with pytest.raises(NotIntegerError, match=r"weight of '0' .*use 'asym'"):
            to_integer(model, torch.zeros(1, 8))
    for scale in (0.3, -0.5, 0.0):
        model = linear(scale=scale)
        with pytest.raises(NotIntegerError, match="input of '0' has a scale that is not a power"):
            to_integer(model, torch.zeros(1, 8))
