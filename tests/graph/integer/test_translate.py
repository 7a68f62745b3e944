# SPDX-License-Identifier: BSD-3-Clause
"""From a traced model to integer steps; what integers cannot take over is named."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

import blockscale as bs
from blockscale.graph.integer.convert import to_integer, with_integer_bias
from blockscale.graph.integer.layers import NotIntegerError
from blockscale.graph.integer.translate import translate
from tests.support.integer_models import (
    INT8,
    PER_CHANNEL,
    before,
    linear,
    quantized,
)


def test_conv1d_and_other_shapes() -> None:
    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.fc = nn.Conv1d(3, 4, 3, padding=1), nn.Linear(4 * 8, 6)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = F.relu(input=self.conv(x).relu()).contiguous()
            return self.fc(y.view(x.size(0), y.shape[1] * 8)), y

    x = torch.randn(2, 3, 8)
    model = quantized(Other(), x, "int8:tensor:pow2/nearest", INT8)
    integer = to_integer(model, x)
    for each, expected in zip(integer(3 * x), with_integer_bias(model)(3 * x), strict=True):
        assert torch.equal(each, expected)


def test_convolutions_in_space_and_not_transposed_ones() -> None:
    x = torch.randn(2, 1, 4, 5, 4)
    layers = nn.Conv3d(1, 2, (2, 3, 1), padding=1), nn.ReLU(), nn.Conv3d(2, 4, 2, groups=2)
    model = quantized(nn.Sequential(*layers), x, PER_CHANNEL, INT8)
    assert torch.equal(to_integer(model, x)(3 * x), with_integer_bias(model)(3 * x))
    layers = nn.Conv3d(1, 2, 2), nn.ConvTranspose3d(2, 1, 2)
    model = quantized(nn.Sequential(*layers), x, PER_CHANNEL, INT8)
    with pytest.raises(NotIntegerError, match=r"'1' \(QConvTranspose\) has no integer form"):
        to_integer(model, x)


def channels() -> Any:
    model = nn.Sequential(nn.Linear(8, 8))
    bs.quantize_(model, bs.Recipe(PER_CHANNEL, "int8:channel-1:pow2/nearest"))
    model[0].input.set_scale(torch.ones(8))
    return model


def reflecting() -> Any:
    layer = nn.Conv1d(1, 1, 3, padding=1, padding_mode="reflect")
    return quantized(nn.Sequential(layer), torch.randn(2, 1, 8), PER_CHANNEL, INT8)


def typed() -> Any:
    """Its zero points are floats. Without kernels: not every machine has one for it."""
    with bs.use("reference"):
        return linear("uint4:channel0:pow2/nearest:asym(fp32)")


class Odd(nn.Module):
    """Two quantized layers around an operation."""

    def __init__(self, between: Any, before: Any = lambda x: x):
        super().__init__()
        self.a, self.b = linear()[0], linear()[2]
        self.between, self.before = between, before

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.between(self.a(self.before(x))))


@pytest.mark.parametrize(
    ("message", "made"),
    [
        ("'0' transforms its input in float", before),
        ("the input of '0' .*: a sum needs one scale, and this has one for each channel", channels),
        ("'0' pads with 'reflect': only zeros are supported", reflecting),
        ("the weight of '0' is int8:channel0:fp32: .*power", lambda: linear("int8:channel0:fp32")),
        ("the weight of '0' is e2m1.* are neither integers", lambda: linear("e2m1:tensor:e8m0")),
        ("the weight of '0' is uint4.*zero points of type fp32 are no", typed),
        ("the weight of '0' .*within a sum.*'channel0' or", lambda: linear("int8:group4:e8m0")),
        ((
        "the input of '0' has no format: set one such as 'int8:tensor:pow2/nearest'"
), lambda: linear(fmt=None)),
        ((
        r"the input of '0' chooses its scale at run time.*\(bs\.calibrate"
), lambda: linear(scale=None)),
        ((
        "the input of '0' is e4m3.*a shift cannot give"
), lambda: linear(fmt="e4m3:tensor:pow2/floor")),
        ("the input of '0' is int8:tensor:fp32: .*power", lambda: linear(fmt="int8:tensor:fp32")),
        ("the input of '0' .* without stochastic", lambda: linear(fmt=INT8 + ":stochastic")),
        ("the output of '0' chooses its scale at run time", lambda: linear(output=INT8)),
        (r"'1' \(Sigmoid\) has no integer form", lambda: nn.Sequential(linear(), nn.Sigmoid())),
        (r"'1' \(Linear\) has no integer form", lambda: nn.Sequential(linear(), nn.Linear(8, 8))),
        (r"'1' \(Dropout\) drops values", lambda: nn.Sequential(linear(), nn.Dropout())),
        (r"'0' \(ReLU\) takes floats: only a", lambda: nn.Sequential(nn.ReLU(), linear())),
        (r"'1' \(Hardtanh\): -0.3 is not a m", lambda: nn.Sequential(linear(), nn.Hardtanh(-0.3))),
        (r"'tanh' \(tanh\) has no integer form", lambda: Odd(torch.tanh)),
        (r"'add' \(add\) takes 1, expected a value of the graph", lambda: Odd(lambda x: x + 1)),
        (r"'add' \(add\) scales what it adds", lambda: Odd(lambda x: torch.add(x, x, alpha=2))),
        (r"'getitem' \(getitem\) has no integer form", lambda: Odd(lambda x: x[:, :8])),
        (r"'getattr_1' \(getattr\) of 'T' has no integer form", lambda: Odd(lambda x: x.T)),
        (r"'dropout' \(dropout\) drops values", lambda: Odd(lambda x: F.dropout(x, training=True))),
    ],
)  # fmt: skip
def test_what_integers_cannot_take_over(message: str, made: Any) -> None:
    with pytest.raises(NotIntegerError, match=message):
        to_integer(made(), torch.zeros(2, 8))


@pytest.mark.parametrize("name", ["relu", "flatten", "add"])
def test_a_module_is_told_by_its_class_and_not_by_its_name(name: str) -> None:
    """A model may call any module `relu`: the name of a method is nothing to go by."""
    model = nn.Module()
    model.a, model.b = linear()[0], linear()[2]
    model.add_module(name, nn.GELU())
    traced = fx.Graph()
    x = traced.placeholder("x")
    y = traced.call_module(name, (traced.call_module("a", (x,)),))
    traced.output(traced.call_module("b", (y,)))
    with pytest.raises(NotIntegerError, match=rf"'{name}' \(GELU\) has no integer form"):
        translate(traced, model, [torch.zeros(2, 8)])


def test_every_input_needs_an_example() -> None:
    with pytest.raises(TypeError, match="the model has an input 'input': pass an example"):
        to_integer(linear())
