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
from blockscale.graph import to_integer, with_integer_bias
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


@pytest.mark.slow
@pytest.mark.some(12)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("outputs", [False, True])
def test_cnn(seed: int, outputs: bool) -> None:
    torch.manual_seed(seed)
    x = torch.randn(3, 1, 8, 8)
    fmt = INPUTS[seed]
    model = quantized(Net(), x, WEIGHTS[seed], fmt, fmt if outputs else None)
    integer = check(model, x)
    layers = [each.name for each in integer.sums if each.kind in ("QConv", "QLinear")]
    assert layers == ["c1", "c2", "c3", "same", "fc"]
    assert [each.kind for each in integer.sums][2::3] == ["add", "avg_pool2d"]


@pytest.mark.slow
@pytest.mark.some(12)
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
    for seed in range(60):
        torch.manual_seed(1000 + seed)
        x = torch.randn(2, 1, 8, 8) * 10 ** float(torch.randn(()))
        fmt = INPUTS[seed % 6]
        model = Net() if seed % 3 else mlp()
        check(quantized(model, x, WEIGHTS[seed // 6 % 6], fmt, INT8 if seed % 2 else None), x)


@pytest.mark.slow
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


@pytest.mark.slow
def test_only_integers_between() -> None:
    x = torch.randn(3, 1, 8, 8)
    integer = to_integer(quantized(Net(), x, PER_CHANNEL, INT8, INT8), x)
    audit = bs.graph.audit_integer(integer.steps)
    assert audit.integer
    assert (audit.ops["integer_quantize"], audit.ops["integer_dequantize"]) == (1, 1)
    assert set(audit.edges) <= {"int8", "int32"}
    assert not any(buffer.is_floating_point() for buffer in integer.buffers())
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
    from blockscale.graph.integer_model import IntegerModel, with_integer_bias

    assert qat.to_integer is bs.graph.to_integer is to_integer
    assert IntegerModel is bs.graph.IntegerModel
    assert with_integer_bias is bs.graph.with_integer_bias
    assert qat.NotIntegerError is bs.graph.NotIntegerError


@pytest.mark.slow
def test_it_is_pickled() -> None:
    x = torch.randn(3, 1, 8, 8)
    integer = to_integer(quantized(mlp(), x, PER_CHANNEL, INT8), x)
    again = pickle.loads(pickle.dumps(integer))
    assert torch.equal(again(x), integer(x))
    assert again.sums == integer.sums


class Sized(nn.Module):
    """A linear layer behind something that asks for sizes."""

    def __init__(self, between: Any):
        super().__init__()
        self.conv, self.fc, self.between = nn.Conv2d(1, 2, 3), nn.Linear(32, 3), between

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.between(self.conv(x)))


@pytest.mark.slow
@pytest.mark.some(2)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    "between",
    [
        nn.Flatten(),
        lambda x: x.reshape(x.size(0), -1),
        lambda x: x.view(x.shape[0], x.shape[1] * 16),
    ],
)
def test_batches_may_have_any_size(between: Any, rows: int) -> None:
    x = torch.randn(rows, 1, 6, 6)
    model = quantized(Sized(between), x, INT8, INT8)
    integer = to_integer(model, x)
    for count in (1, 2, 5):
        batch = torch.randn(count, 1, 6, 6)
        with torch.no_grad():
            assert torch.equal(integer(batch), with_integer_bias(model)(batch))


def test_the_rows_of_the_example_are_no_constants() -> None:
    """A view of the example's rows becomes one of any, and no second program is made."""
    x = torch.randn(3, 1, 6, 6)
    integer = to_integer(quantized(Sized(lambda x: x.reshape(x.size(0), 32)), x, INT8, INT8), x)
    assert integer.sizes == ((None, 1, 6, 6),)
    assert integer(x[:2]).shape == (2, 3)
    shapes = {node.meta["val"].shape[0] for node in integer.steps.graph.nodes if node.users}
    assert 3 in shapes


@pytest.mark.slow
def test_other_sizes_where_nothing_asks_for_them() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    x = torch.randn(1, 1, 8, 8)
    model = quantized(model, x, PER_CHANNEL, INT8)
    integer = to_integer(model, x)
    assert integer.sizes == ()
    other = torch.randn(3, 1, 10, 12)
    assert torch.equal(integer(other), with_integer_bias(model)(other).detach())


def test_sizes_that_windows_were_chosen_for() -> None:
    layers = (
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(4, 3),
    )  # fmt: skip
    x = torch.randn(2, 2, 8, 4)
    integer = check(quantized(nn.Sequential(*layers), x, PER_CHANNEL, INT8), x)
    message = r"made for inputs of \[any, 2, 8, 4\], not \[2, 2, 4, 8\]: give to_integer an ex"
    with pytest.raises(ValueError, match=message):
        integer(x.transpose(2, 3))


@pytest.mark.slow
def test_what_it_takes_beside_layers_is_kept() -> None:
    """Training mode, and tuples that a model returns."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.fc = nn.Conv1d(3, 4, 3, padding=1), nn.Linear(4 * 8, 6)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = F.relu(input=self.conv(x).relu()).contiguous()
            return self.fc(y.view(x.size(0), y.shape[1] * 8)), y

    x = torch.randn(2, 3, 8)
    model = quantized(Two(), x, "int8:tensor:pow2/nearest", INT8).train()
    integer = to_integer(model, x)
    assert integer.training and integer.steps.training and model.fc.training
    for each, expected in zip(integer(3 * x), with_integer_bias(model)(3 * x), strict=True):
        assert torch.equal(each, expected)


def test_the_modules_of_before_there_was_one_path() -> None:
    with pytest.warns(DeprecationWarning, match="is called blockscale.graph.integer_model now"):
        from blockscale.graph.integer.convert import to_integer as before
    assert before is to_integer
    with pytest.warns(DeprecationWarning, match="is called blockscale.ops.integer.shifts now"):
        from blockscale.graph.integer.arithmetic import requantize_shift
    assert requantize_shift is bs.ops.integer.shifts.requantize_shift
