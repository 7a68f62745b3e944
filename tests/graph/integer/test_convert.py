# SPDX-License-Identifier: BSD-3-Clause
"""Models of integers: the fake-quantized model bit for bit, also on inputs made to differ."""

import copy
import pathlib
import pickle
from fractions import Fraction
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import blockscale as bs
from blockscale import qat
from blockscale.graph.integer.convert import to_integer, with_integer_bias
from blockscale.graph.integer.steps import Dequantize, Quantize
from tests.support.integer_models import (
    INT8,
    PER_CHANNEL,
    check,
    quantized,
)


class Net(nn.Module):
    """A small CNN with most of what is supported, by functions and by modules."""

    def __init__(self) -> None:
        super().__init__()
        self.c1 = nn.Conv2d(1, 8, 3, padding=1)
        self.c2 = nn.Conv2d(8, 8, 3, padding=1, groups=2, bias=False)
        self.c3 = nn.Conv2d(8, 6, (3, 2), stride=(1, 2), padding=2, dilation=2)
        self.same = nn.Conv2d(6, 6, 2, padding="same")
        self.pool, self.six, self.drop = nn.MaxPool2d(3, 2, 1), nn.ReLU6(), nn.Dropout()
        self.fc = nn.Linear(6 * 6, 10)
        for conv in (self.c1, self.c2, self.c3, self.same):  # channels of several exponents
            conv.weight.data *= 4.0 ** torch.randint(-1, 2, (conv.out_channels, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.c1(x))
        y = self.pool(x)
        y = y + torch.relu(self.c2(y))
        y = self.six(self.same(self.c3(y)))
        y = F.avg_pool2d(F.max_pool2d(y, 1), (2, 1))
        return self.fc(self.drop(y.flatten(1)))


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 24), nn.Identity(),
        nn.Hardtanh(-2, 2), nn.Linear(24, 5),
    )  # fmt: skip


INPUTS = (
    INT8,
    "uint8:tensor:pow2/nearest:asym",
    "int8:tensor:e8m0/rceil",
    "int6:tensor:pow2/ceil:full",
    "int8:tensor:pow2/nearest:nearest_away",
    "uint7:tensor:pow2/floor:asym:down",
)
WEIGHTS = (
    PER_CHANNEL,
    "int8:tensor:pow2/floor",
    "ternary:channel0:pow2/nearest",
    "int4:channel0:e8m0",
    "int8:channel0:pow2/nearest:asym",
    "binary:tensor:pow2/nearest",
)


@pytest.mark.some(4)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("outputs", [False, True])
def test_cnn(seed: int, outputs: bool) -> None:
    torch.manual_seed(seed)
    x = torch.randn(3, 1, 8, 8)
    fmt = INPUTS[seed]
    model = quantized(Net(), x, WEIGHTS[seed], fmt, fmt if outputs else None)
    integer = check(model, x)
    assert [each.name for each in integer.sums] == [
        "c1", "c2", "add", "c3", "same", "avg_pool2d", "fc"
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(12))
def test_mlp(seed: int) -> None:
    torch.manual_seed(100 + seed)
    x = torch.randn(9, 1, 8, 8)
    fmt = INPUTS[seed % 6]
    model = quantized(mlp(), x, WEIGHTS[-(seed % 5)], fmt, fmt if seed % 2 else None)
    integer = check(model, x)
    worst = 1e30 * model[1].weight.tensor.codes.float().sign().reshape(-1, 1, 8, 8)
    with torch.no_grad():  # every output of the first layer at its largest
        assert torch.equal(integer(worst), with_integer_bias(model)(worst))


@pytest.mark.slow
def test_many_seeds() -> None:
    for seed in range(150):
        torch.manual_seed(1000 + seed)
        x = torch.randn(2, 1, 8, 8) * 10 ** float(torch.randn(()))
        fmt = INPUTS[seed % 6]
        model = Net() if seed % 3 else mlp()
        check(quantized(model, x, WEIGHTS[seed // 6 % 6], fmt, INT8 if seed % 2 else None), x)


def test_by_hand() -> None:
    """An oracle without PyTorch: a two-layer model in exact rationals, input by input."""
    model = quantized(
        nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)),
        torch.randn(4, 6),
        PER_CHANNEL,
        INT8,
    )
    integer = to_integer(model, torch.randn(4, 6))
    for x in ((torch.randn(4, 6) * 20).round() / 32).tolist():
        values = [Fraction(v) for v in x]
        for layer in (model[0], model[2]):
            step = Fraction(layer.input.scale.item())
            codes = [max(-127, min(127, round(v / step))) for v in values]
            rows = layer.weight.tensor.codes.tolist()
            scales = [Fraction(s) for s in layer.weight.scale.flatten().tolist()]
            values = []
            for row, scale, bias in zip(rows, scales, layer.bias.tolist(), strict=True):
                total = sum(w * c for w, c in zip(row, codes, strict=True))
                values.append((total + round(Fraction(bias) / (step * scale))) * step * scale)
            if layer is model[0]:
                values = [max(v, Fraction(0)) for v in values]
        found = integer(torch.tensor([x]))[0].tolist()
        assert [Fraction(v) for v in found] == values


def test_only_integers_between() -> None:
    x = torch.randn(3, 1, 8, 8)
    integer = to_integer(quantized(Net(), x, PER_CHANNEL, INT8, INT8), x)
    seen: dict[str, tuple[type, torch.dtype]] = {}

    def note(name: str) -> Any:
        return lambda module, args, y: seen.update({name: (type(module), y.dtype)})

    for name, module in integer.steps.named_children():
        module.register_forward_hook(note(name))
    integer(x)
    kinds = [kind for kind, _ in seen.values()]
    assert kinds.count(Quantize) == kinds.count(Dequantize) == 1
    assert (kinds[0], kinds[-1]) == (Quantize, Dequantize)
    assert {dtype for kind, dtype in seen.values() if kind is not Dequantize} == {
        torch.int8,
        torch.int32,
    }
    assert all(
        not b.is_floating_point() for n, b in integer.named_buffers() if not n.endswith("scale")
    )
    assert not list(integer.parameters())


def test_the_numbers_are_its_state() -> None:
    x = torch.randn(3, 1, 8, 8)
    integer = to_integer(quantized(Net(), x, PER_CHANNEL, INT8), x)
    other = copy.deepcopy(integer)
    for buffer in other.buffers():
        buffer.fill_(1)
    assert not torch.equal(other(x), integer(x))
    other.load_state_dict(integer.state_dict())
    assert torch.equal(other(x), integer(x))


def test_biases_are_the_integers_ones() -> None:
    x = torch.randn(3, 64)
    model = quantized(
        nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3)), x, PER_CHANNEL, INT8
    )
    rounded = with_integer_bias(model)
    for before, after in ((model[0], rounded[0]), (model[2], rounded[2])):
        steps = before.input.scale.flatten() * before.weight.scale.flatten()
        expected = [
            round(Fraction(b) / Fraction(s)) * Fraction(s)
            for b, s in zip(before.bias.tolist(), steps.tolist(), strict=True)
        ]
        assert [Fraction(b) for b in after.bias.tolist()] == expected
        assert not torch.equal(before.bias, after.bias)
    assert torch.equal(to_integer(rounded, x)(x), rounded(x))
    assert torch.equal(with_integer_bias(rounded)(x), rounded(x))


def test_what_training_made() -> None:
    """prepare_qat, a few steps, convert: the integers give what the trained model gives."""
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 3),
    )
    qat.prepare_qat(model, bs.Recipe(PER_CHANNEL, INT8))
    for _ in range(4):
        model(torch.randn(16, 1, 8, 8)).square().mean().backward()
        for parameter in model.parameters():
            parameter.data -= 0.05 * parameter.grad
    model.eval()
    qat.convert(model)
    x = torch.randn(5, 1, 8, 8)
    check(model, x)


def test_calibrated_saved_and_loaded(tmp_path: pathlib.Path) -> None:
    layers = (nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5))
    model, x = nn.Sequential(*layers).eval(), torch.randn(16, 1, 8, 8)
    empty = copy.deepcopy(model)
    recipe = bs.Recipe(PER_CHANNEL, "uint8:tensor:pow2/nearest:asym", INT8)
    bs.calibrate(model, [x], recipe, observer="min_max", progress=False)
    integer = check(model, x)
    bs.save(model, tmp_path / "model.safetensors")
    bs.load(empty, tmp_path / "model.safetensors")
    assert torch.equal(to_integer(empty, x)(x), integer(x))


def test_the_names_of_before_graph_had_a_folder() -> None:
    """`bs.qat.to_integer` is `bs.graph.to_integer`, by import and by attribute."""
    from blockscale.qat import IntegerModel, with_integer_bias

    assert qat.to_integer is bs.graph.to_integer is to_integer
    assert IntegerModel is bs.graph.IntegerModel
    assert with_integer_bias is bs.graph.with_integer_bias
    assert qat.NotIntegerError is bs.graph.NotIntegerError


def test_it_is_pickled() -> None:
    x = torch.randn(3, 1, 8, 8)
    integer = to_integer(quantized(mlp(), x, PER_CHANNEL, INT8), x)
    again = pickle.loads(pickle.dumps(integer))
    assert torch.equal(again(x), integer(x))
    assert again.sums == integer.sums
