# SPDX-License-Identifier: BSD-3-Clause
"""What stands between layers of an integer model: sums, bounds, windows, shapes."""

import operator
from fractions import Fraction
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import blockscale as bs
from blockscale.graph import NotIntegerError, to_integer, with_integer_bias
from tests.support.integer_models import INT8, PER_CHANNEL, between, check, linear, quantized


class Sum(nn.Module):
    """Two layers of one input, whose outputs have other scales, added."""

    def __init__(self, add, factor: float = 16.0):
        super().__init__()
        self.a, self.b, self.add = nn.Linear(6, 4), nn.Linear(6, 4), add
        self.b.weight.data *= factor

    def forward(self, x: Tensor) -> Tensor:
        return self.add(self.a(x), self.b(x))


@pytest.mark.some(40)
@pytest.mark.parametrize("fmt", [INT8, "uint8:tensor:pow2/nearest:asym"])
@pytest.mark.parametrize("outputs", [False, True])
@pytest.mark.parametrize(
    "add", [operator.add, operator.iadd, torch.add, lambda x, y: x.add(y), lambda x, y: x.add_(y)]
)
def test_every_spelling(add, outputs: bool, fmt: str) -> None:
    x = torch.randn(5, 6)
    model = quantized(Sum(add), x, PER_CHANNEL, fmt, fmt if outputs else None)
    integer = check(model, x)
    *layers, both = integer.sums
    assert {each.name for each in layers} in ({"a", "b"}, {"a_b"})  # of one tensor: one product
    assert both.kind == "add"
    if not outputs:  # both in steps of the smaller scale
        assert both.largest >= 2 * min(each.largest for each in layers)


@pytest.mark.slow
def test_by_hand() -> None:
    """Codes up to 127 under 2^-1 and 2^-3: (127 << 2) + 127 steps of 2^-3."""
    model = quantized(Sum(operator.add, 1.0), torch.randn(5, 6), PER_CHANNEL, INT8, INT8)
    model.a.output.set_scale(torch.tensor([0.5]))
    model.b.output.set_scale(torch.tensor([0.125]))
    integer = to_integer(model, torch.randn(5, 6))
    assert integer.sums[2].largest == (127 << 2) + 127


def test_a_sum_is_bounded_in_the_steps_of_its_channel() -> None:
    """Each channel of two layers has its own step, and float32 has to hold digits of that alone."""
    model, x = between(lambda y: y + y.relu())
    integer = check(model, x)
    first, both, _ = integer.sums
    assert (first.kind, both.kind) == ("QConv", "add")
    assert both.largest == 2 * first.largest  # not 2^6 times as much, as its channels lie apart


def test_scales_too_far_apart_are_refused() -> None:
    x = torch.randn(5, 6)
    model = quantized(Sum(operator.add, 2.0**20), x, INT8, INT8)
    model.b.weight.scale.mul_(2.0**20)
    with pytest.raises(
        NotIntegerError, match=r"scales differ by 2\^\d+, over 2\^40|more than int32"
    ):
        to_integer(model, x)


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.some(2)
@pytest.mark.parametrize("fmt", [INT8, "uint8:tensor:pow2/nearest:asym"])
@pytest.mark.parametrize("bounded", [nn.ReLU6(), nn.Hardtanh(-8, 12)])
def test_bounds_of_activations(fmt: str, bounded: nn.Module) -> None:
    """Values far beyond them, on both sides, with a zero point too."""
    x = torch.randn(50, 8)
    model = quantized(nn.Sequential(nn.Linear(8, 8), bounded, nn.Linear(8, 3)), x, INT8, fmt)
    model[0].input.set_scale(
        torch.tensor([1.0]), *[torch.tensor([128], dtype=torch.int32)] * ("asym" in fmt)
    )
    x = 100 * x
    assert (model[0](x) > 12).any()
    assert (model[0](x) < -8).any()
    integer = to_integer(model, x)
    with torch.no_grad():
        assert torch.equal(integer(x), with_integer_bias(model)(x))


@pytest.mark.parametrize(
    ("bounded", "low", "high"),
    [(nn.ReLU(), 0.0, None), (nn.ReLU6(), 0.0, 6.0), (nn.Hardtanh(-8, 12), -8.0, 12.0)],
)
def test_the_bounds_themselves(bounded: nn.Module, low: float, high: float | None) -> None:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    model = quantized(nn.Sequential(layer, bounded), torch.ones(1, 1), INT8, INT8)
    model[0].input.set_scale(torch.tensor([1.0]))
    below, above = to_integer(model, torch.ones(1, 1))(torch.tensor([[-100.0], [100.0]]))
    assert below.item() == low
    assert above.item() == (model[0](torch.tensor([[100.0]])).item() if high is None else high)


class Flat(nn.Module):
    def __init__(self, flatten: Any, features: int):
        super().__init__()
        self.conv, self.fc, self.flatten = nn.Conv2d(2, 4, 3), nn.Linear(features, 3), flatten
        self.conv.weight.data *= 4.0 ** torch.arange(-2, 2).reshape(4, 1, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.flatten(self.conv(x)))


@pytest.mark.slow
@pytest.mark.some(2)
@pytest.mark.parametrize(
    "flatten", [nn.Flatten(), lambda x: torch.flatten(x, 1), lambda x: x.flatten(start_dim=1)]
)
def test_channels_of_several_scales_are_flattened(flatten: Any) -> None:
    x = torch.randn(3, 2, 5, 4)
    check(quantized(Flat(flatten, 4 * 3 * 2), x, PER_CHANNEL, INT8), x)


@pytest.mark.slow
def test_channels_of_several_scales_beside_batches() -> None:
    x = torch.randn(3, 2, 5, 4)
    for weight in (PER_CHANNEL, INT8):
        check(quantized(Flat(nn.Flatten(2), 6), x, weight, INT8), x)


SHAPES = [
    lambda x: x.view(2, 4, 16, 1),
    lambda x: x.reshape(2, 4, 1, 16),
    lambda x: x.reshape(x.size(0), x.size(1), -1, 1),
    lambda x: x.contiguous(),
    lambda x: x[:, :, :3].mT,
]


@pytest.mark.slow
@pytest.mark.some(4)
@pytest.mark.parametrize("output", [None, INT8])
@pytest.mark.parametrize("reshape", SHAPES)
def test_other_shapes(reshape: Any, output: str | None) -> None:
    """Of codes, and of sums whose channels have several scales."""
    model, x = between(reshape, output)
    found, expected = to_integer(model, x)(x), with_integer_bias(model)(x)
    assert torch.equal(found, expected.detach())


@pytest.mark.slow
@pytest.mark.some(2)
@pytest.mark.parametrize(
    "operation",
    [nn.Identity(), nn.Dropout(0.5), nn.Dropout2d(0.5), lambda x: F.dropout(x, 0.5, False)],
)
def test_what_passes_its_input_on(operation: Any) -> None:
    model, x = between(operation)
    audit = bs.graph.audit_integer(check(model, x).steps)
    assert {name for name in audit.ops if name != "move"} == {
        "integer_quantize", "integer_conv", "integer_dequantize"
    }  # fmt: skip


def test_dropout_without_a_chance_is_taken_in_training() -> None:
    model, x = between(nn.Dropout(0.0))
    assert to_integer(model.train(), x).exact


POOLS = [
    nn.MaxPool2d(2),
    nn.MaxPool2d(3, 1, 1),
    nn.MaxPool2d(2, 1, dilation=2),
    nn.MaxPool2d(3, 2, ceil_mode=True),
    lambda x: F.max_pool2d(x, 3, 2, 1, 1, True),  # ceil_mode comes before return_indices there
]


@pytest.mark.slow
@pytest.mark.some(4)
@pytest.mark.parametrize("output", [None, INT8])
@pytest.mark.parametrize("pool", POOLS)
def test_maxima_of_codes_and_of_sums(pool: Any, output: str | None) -> None:
    model, x = between(pool, output)
    check(model, x)


@pytest.mark.slow
def test_unsigned_codes_of_more_than_eight_bits() -> None:
    """They lie in int32, where signed ones of 16 bits lie in int16."""
    for fmt in ("uint12:tensor:pow2/ceil", "uint16:tensor:pow2/ceil:asym"):
        x = torch.randn(5, 8)
        model = linear(INT8, fmt, scale=None)
        for layer, value in ((model[0], x), (model[2], x.abs())):
            layer.input.set_scale(*bs.choose_qparams(value.reshape(-1), layer.input.format))
        integer = to_integer(model, x)
        with torch.no_grad():
            assert torch.equal(integer(x), with_integer_bias(model)(x)) or not integer.exact
