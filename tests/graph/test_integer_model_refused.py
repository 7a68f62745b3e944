# SPDX-License-Identifier: BSD-3-Clause
"""What integers cannot take over is named, and what they can, beside it."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import blockscale as bs
from blockscale.graph import NotIntegerError, to_integer, with_integer_bias
from tests.support.integer_models import (
    INT8,
    PER_CHANNEL,
    before,
    linear,
    quantized,
)


@pytest.mark.slow
def test_convolutions_in_space_and_transposed_ones() -> None:
    x = torch.randn(2, 1, 4, 5, 4)
    layers = nn.Conv3d(1, 2, (2, 3, 1), padding=1), nn.ReLU(), nn.Conv3d(2, 4, 2, groups=2)
    model = quantized(nn.Sequential(*layers), x, PER_CHANNEL, INT8)
    with torch.no_grad():
        assert torch.equal(to_integer(model, x)(3 * x), with_integer_bias(model)(3 * x))
        layers = nn.Conv3d(1, 2, 2), nn.ConvTranspose3d(2, 4, 2, groups=2)
        model = quantized(nn.Sequential(*layers), x, PER_CHANNEL, INT8)
        assert torch.equal(to_integer(model, x)(3 * x), with_integer_bias(model)(3 * x))


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


@pytest.mark.some(2)
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
        ("the input of '0' has no format: set one such as 'int8:tens", lambda: linear(fmt=None)),
        (r"the input of '0' chooses its scale at run .*\(bs\.cal", lambda: linear(scale=None)),
        ("'0' is e4m3.*a shift cannot give", lambda: linear(fmt="e4m3:tensor:pow2/floor")),
        ("the input of '0' is int8:tensor:fp32: .*power", lambda: linear(fmt="int8:tensor:fp32")),
        ("the input of '0' .* without stochastic", lambda: linear(fmt=INT8 + ":stochastic")),
        ("the output of '0' chooses its scale at run time: use", lambda: linear(output=INT8)),
        ("of 1 .*ends in sigmoid of its sums", lambda: nn.Sequential(linear(), nn.Sigmoid())),
        ("linear of 1 .*in float: set a f", lambda: nn.Sequential(linear(), nn.Linear(8, 8))),
        (r"'1' \(Dropout\) drops values", lambda: nn.Sequential(linear(), nn.Dropout())),
        ("sort .*has no integer form here", lambda: Odd(nn.ReLU(), lambda x: x.sort().values)),
        ("hardtanh .*: -0.3 is not a mult", lambda: nn.Sequential(linear(), nn.Hardtanh(-0.3))),
        ("fused_linear of b .*ends in tanh of its sums", lambda: Odd(torch.tanh)),
        ("add_scalar .*takes sums of 32 bits, too many for", lambda: Odd(lambda x: x + 1)),
        ("add .*scales what it adds", lambda: Odd(lambda x: torch.add(x, x, alpha=2))),
        ("pad .*pads with 3.0: only zer", lambda: Odd(lambda x: F.pad(x, (0, 0, 1, 0), value=3.0))),
        ("cumsum .*has no integer form here", lambda: Odd(lambda x: x.cumsum(0))),
        ("dropout .*drops values", lambda: Odd(lambda x: F.dropout(x, training=True))),
    ],
)  # fmt: skip
def test_what_integers_cannot_take_over(message: str, made: Any) -> None:
    with pytest.raises(NotIntegerError, match=message):
        to_integer(made(), torch.zeros(2, 8))


def test_every_input_needs_an_example() -> None:
    with pytest.raises(TypeError, match="the model has an input 'input': give an example of it"):
        to_integer(linear())
    with pytest.raises(TypeError, match="the examples are no inputs of the model: too many"):
        to_integer(linear(), torch.zeros(2, 8), torch.zeros(2, 8))
    with pytest.raises(
        TypeError, match=r"an example input must be a float32 tensor, found torch\.int64"
    ):
        to_integer(linear(), torch.zeros(2, 8, dtype=torch.int64))
