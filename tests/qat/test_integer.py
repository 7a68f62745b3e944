"""Integer-only execution: the fake-quantized model bit for bit, also on inputs made to differ."""

import copy
import math
import pathlib
import re
import subprocess
import sys
from fractions import Fraction
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import blockscale as bs
from blockscale import qat
from blockscale.graph.integer.convert import to_integer, with_integer_bias
from blockscale.graph.integer.layers import NotIntegerError
from blockscale.graph.integer.steps import Dequantize, Quantize
from blockscale.layers.layer import QLayer

INT8 = "int8:tensor:pow2/nearest"
PER_CHANNEL = "int8:channel0:pow2/nearest"


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


@pytest.mark.parametrize("fmt", [INT8, "uint8:tensor:pow2/nearest:asym"])
def test_bounds_of_activations(fmt: str) -> None:
    """Values far beyond them, on both sides, with a zero point too."""
    for bounded in (nn.ReLU6(), nn.Hardtanh(-8, 12)):
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


def test_global_average() -> None:
    layers = (
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    )
    x = torch.randn(2, 2, 8, 4)
    integer = check(quantized(nn.Sequential(*layers), x, PER_CHANNEL, INT8), x)
    with pytest.raises(ValueError, match=r"made for maps of \(8, 4\), not \(4, 8\)"):
        integer(x.transpose(2, 3))


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


def test_exactness_ends_at_two_to_the_24() -> None:
    for more, exact in ((0, True), (1, False)):
        model = nn.Sequential(nn.Linear(1, 1))
        model[0].weight.data.fill_(1.0)  # 64 steps of 2^-6
        model[0].bias.data.fill_(-(2**24 - 64 * 127 + more) / 64)
        bs.quantize_(model, bs.Recipe("int8:tensor:pow2/ceil", INT8))
        model[0].input.set_scale(torch.tensor([1.0]))
        integer = to_integer(model, torch.zeros(1, 1))
        assert [(each.largest, each.exact) for each in integer.sums] == [(2**24 + more, exact)]


def test_steps_beyond_float32() -> None:
    model = linear(scale=2.0**-120)
    model[0].bias.data.zero_()
    model[0].weight.scale.fill_(2.0**-40)
    with pytest.raises(NotIntegerError, match=r"sums of '0' have steps from 2\^-160 to 2\^-160"):
        to_integer(model, torch.zeros(1, 8))
    model[0].weight.scale.fill_(2.0**-29)  # the smallest that float32 holds, and it is exact
    model[2].bias.data.zero_()
    with torch.no_grad():
        for x in (torch.randn(20, 8), 1e-35 * torch.randn(20, 8)):
            assert torch.equal(to_integer(model, x)(x), model(x))


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


def channels() -> Any:
    model = nn.Sequential(nn.Linear(8, 8))
    bs.quantize_(model, bs.Recipe(PER_CHANNEL, "int8:channel-1:pow2/nearest"))
    model[0].input.set_scale(torch.ones(8))
    return model


def reflecting() -> Any:
    layer = nn.Conv1d(1, 1, 3, padding=1, padding_mode="reflect")
    return quantized(nn.Sequential(layer), torch.randn(2, 1, 8), PER_CHANNEL, INT8)


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
        ("the input of '0' .*: scales by channel cannot leave a sum", channels),
        ("'0' pads with 'reflect': only zeros are there", reflecting),
        ("the weight of '0' is int8:channel0:fp32: .*power", lambda: linear("int8:channel0:fp32")),
        ("the weight of '0' is e2m1.*codes are not", lambda: linear("e2m1:tensor:e8m0")),
        ("the weight of '0' .*within a sum.*'channel0' or", lambda: linear("int8:group4:e8m0")),
        ("the input of '0' has no format: give it one such as 'int8", lambda: linear(fmt=None)),
        ("the input of '0' chooses its scale when it runs: .*bs.cal", lambda: linear(scale=None)),
        ("the input of '0' is e4m3.*no shift gives", lambda: linear(fmt="e4m3:tensor:pow2/floor")),
        ("the input of '0' is int8:tensor:fp32: .*power", lambda: linear(fmt="int8:tensor:fp32")),
        ("the input of '0' .* without stochastic", lambda: linear(fmt=INT8 + ":stochastic")),
        ("the output of '0' chooses its scale when it runs", lambda: linear(output=INT8)),
        (r"'1' \(Sigmoid\) has no integer form", lambda: nn.Sequential(linear(), nn.Sigmoid())),
        (r"'1' \(Linear\) has no integer form", lambda: nn.Sequential(linear(), nn.Linear(8, 8))),
        (r"'1' \(Dropout\) drops values", lambda: nn.Sequential(linear(), nn.Dropout())),
        (r"'0' \(ReLU\) takes floats: only a", lambda: nn.Sequential(nn.ReLU(), linear())),
        (r"'1' \(Hardtanh\): -0.3 is no m", lambda: nn.Sequential(linear(), nn.Hardtanh(-0.3))),
        (r"'tanh' \(tanh\) has no integer form", lambda: Odd(torch.tanh)),
        (r"'add' \(add\) takes 1: only values of the graph do", lambda: Odd(lambda x: x + 1)),
        (r"'add' \(add\) scales what it adds", lambda: Odd(lambda x: torch.add(x, x, alpha=2))),
        (r"'getitem' \(getitem\) has no integer form", lambda: Odd(lambda x: x[:, :8])),
        (r"'getattr_1' \(getattr\) of 'T' has no integer form", lambda: Odd(lambda x: x.T)),
        (r"'dropout' \(dropout\) drops values", lambda: Odd(lambda x: F.dropout(x, training=True))),
    ],
)  # fmt: skip
def test_what_integers_cannot_take_over(message: str, made: Any) -> None:
    with pytest.raises(NotIntegerError, match=message):
        to_integer(made(), torch.zeros(2, 8))


@pytest.mark.slow
def test_the_example() -> None:
    """A CNN on real digits: trained under powers of two, its integers have the same bits."""
    script = pathlib.Path(__file__).parents[2] / "examples" / "power_of_two.py"
    pytest.importorskip("sklearn")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    figures = dict(re.findall(r"^(\w[\w ,-]*?) {2,}([\d.]+) %$", done.stdout, re.MULTILINE))
    assert float(figures["float"]) >= 98
    assert float(figures["integers alone"]) >= float(figures["float"]) - 1
    assert re.search(r"^the same bits +True$", done.stdout, re.MULTILINE)
