# SPDX-License-Identifier: BSD-3-Clause
"""Integer models whose recipe quantized the biases: one rule, the same codes, no other bits."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.graph import NotIntegerError, to_integer, with_integer_bias
from blockscale.graph.lowering.integers.audit import name_of
from blockscale.layers.layer import QLayer
from tests.support.integer_models import INT8, PER_CHANNEL, Between, check

WEIGHTS = [PER_CHANNEL, INT8, "int4:channel0:e8m0/ceil", "ternary:channel0:pow2/nearest"]
X = torch.randn(6, 2, 4, 4, generator=torch.Generator().manual_seed(3))


def model(bias: Any, weight: str = PER_CHANNEL, fmt: str = INT8) -> Any:
    torch.manual_seed(1)
    made = Between(nn.ReLU())
    made.first.weight.data[2] = 0  # an output whose scale says nothing
    bs.calibrate(made.eval(), [X], bs.Recipe(weight, fmt, bias=bias), progress=False, strict=True)
    return made


@pytest.mark.slow
@pytest.mark.some(12)
@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("fmt", [INT8, "uint8:tensor:pow2/nearest:asym"])
def test_the_codes_are_those_that_to_integer_makes(weight: str, fmt: str) -> None:
    quantized, plain = model("int32", weight, fmt), model(None, weight, fmt)
    found, wanted = to_integer(quantized, X), to_integer(plain, X)
    assert found.sums == wanted.sums
    layers = [n for n in found.steps.graph.nodes if name_of(n) == "integer_conv"]
    for name, node in zip(("first", "last"), layers, strict=True):
        bias = found.steps.get_buffer(node.args[2].target)
        assert torch.equal(bias, quantized.get_submodule(name).bias.codes)
    with torch.no_grad():
        for x in (X, 50 * X):
            y = found(x)
            assert torch.equal(y, wanted(x))
            assert torch.equal(y, quantized(x))  # the model itself: nothing is left to round
            assert torch.equal(y, with_integer_bias(plain)(x))
    check(quantized, X)


@pytest.mark.slow
def test_with_integer_bias_leaves_codes_and_rounds_the_others() -> None:
    for bias, kind in (("int32", "QBias"), ("int16:sums", "QBias"), ("int8", "Parameter")):
        quantized = model(bias)
        before = copy.deepcopy(quantized.state_dict())
        rounded = with_integer_bias(quantized)
        for layer in rounded.modules():
            if isinstance(layer, QLayer):
                held = layer.quantized_bias
                assert type(layer.bias if held is None else held).__name__ == kind
        check(quantized, X)
        assert all(torch.equal(v, before[k]) for k, v in quantized.state_dict().items())


def test_scales_that_changed_since_are_refused() -> None:
    quantized = model("int32")
    quantized.last.input.scale.mul_(2)
    words = "the bias of 'last' was quantized for other scales of its input and weight, which"
    with pytest.raises(NotIntegerError, match=words):
        to_integer(quantized, X)
    quantized = model("int32", INT8)
    quantized.first.weight.scale.div_(2)
    with pytest.raises(NotIntegerError, match="the bias of 'first' was quantized for other scales"):
        to_integer(quantized, X)


def test_saturated_codes_do_not_fit_with_sums_beside_them() -> None:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(4, 3))
    made[0].bias.data[1] = 1e9
    with pytest.warns(UserWarning, match="1 of 3 biases .* saturate"):
        bs.calibrate(made, [torch.randn(8, 4)], bs.Recipe(INT8, INT8, bias="int32"), progress=False)
    with pytest.raises(
        NotIntegerError, match=r"the bias is 2.147e\+09 steps of the sums, more than"
    ):
        to_integer(made.eval(), torch.randn(8, 4))


@pytest.mark.slow
def test_after_training() -> None:
    torch.manual_seed(0)
    made: Any = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)
    )
    bs.prepare_qat(made, bs.Recipe(PER_CHANNEL, INT8, bias="int32"), strict=True)
    for _ in range(3):
        made.train()(torch.randn(8, 2, 4, 4)).square().mean().backward()
    with torch.no_grad():
        trained: Tensor = made.eval()(X)
        bs.convert(made)
        assert torch.equal(to_integer(made, X)(X), trained)
    check(made, X)
