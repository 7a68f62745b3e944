# SPDX-License-Identifier: BSD-3-Clause
"""Models under power-of-two scales, and the check that integers give their bits."""

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.graph import to_integer, with_integer_bias
from blockscale.layers.layer import QLayer

INT8 = "int8:tensor:pow2/nearest"
PER_CHANNEL = "int8:channel0:pow2/nearest"


def quantized(model: nn.Module, x: Tensor, weight: str, fmt: str, output: str | None = None) -> Any:
    """`model` with static inputs (and outputs) whose scales come from what it sees of x."""
    model = model.eval()
    bs.quantize_(model, bs.Recipe(weight, fmt, output))

    def observe(layer: Any, args: Any) -> None:
        layer.input.set_scale(*bs.choose_qparams(args[0].reshape(-1), layer.input.format))

    def look(layer: Any, args: Any, y: Tensor) -> None:
        if output is not None:
            layer.output.set_scale(*bs.choose_qparams(y.reshape(-1), layer.output.format))

    layers = [layer for layer in model.modules() if isinstance(layer, QLayer)]
    hooks = [layer.register_forward_pre_hook(observe) for layer in layers]
    hooks += [layer.register_forward_hook(look) for layer in layers]
    with torch.no_grad():
        model(x)
    for hook in hooks:
        hook.remove()
    return model


def inputs(x: Tensor) -> list[Tensor]:
    """Ordinary ones, saturating ones, every sign at its limit, ties, zeros, non-finite ones."""
    odd = x.clone()
    odd.view(-1)[::7] = torch.tensor([math.nan, math.inf, -math.inf]).repeat(100)[
        : len(odd.view(-1)[::7])
    ]
    return [x, 100 * x, 1e30 * x.sign(), (x * 16).round() / 32, x * 0, 1e-40 * x, odd, x[:0]]


@torch.no_grad()
def check(model: nn.Module, x: Tensor) -> Any:
    before = copy.deepcopy(model.state_dict())
    integer, float_model = to_integer(model, x), with_integer_bias(model)
    assert integer.exact
    for each in inputs(x):
        found, expected = integer(each), float_model(each)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert torch.equal(found, expected)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    return integer


def linear(
    weight: str = INT8, fmt: str | None = INT8, scale: Any = 0.5, output: str | None = None
) -> Any:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    bs.quantize_(model, bs.Recipe(weight, fmt, output))
    for layer in (model[0], model[2]):
        if fmt is not None and scale is not None:
            layer.input.set_scale(torch.tensor([scale]))
    return model


def before() -> Any:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    recipe = bs.Recipe(PER_CHANNEL, INT8)
    bs.calibrate(model, [torch.randn(4, 8)], recipe, transform="smoothquant", progress=False)
    return model


class Between(nn.Module):
    """A convolution whose channels have several scales, an operation, another convolution."""

    def __init__(self, operation: Any):
        super().__init__()
        self.first, self.last = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 3, 1)
        self.first.weight.data *= 4.0 ** torch.arange(-2, 2).reshape(4, 1, 1, 1)
        self.operation = operation

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.operation(self.first(x)))


def between(operation: Any, output: str | None = None) -> Any:
    """The model that has `operation` between its convolutions, and an input for it."""
    x = torch.randn(2, 2, 4, 4)
    return quantized(Between(operation), x, PER_CHANNEL, INT8, output), x
