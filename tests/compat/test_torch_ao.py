"""torch.ao's classes with power-of-two scales, compared with torch.ao itself and with rationals."""

import math
import warnings
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.ao import quantization as ao

from blockscale.compat import torch_ao
from blockscale.compat.torch_ao import (
    FakeQuantize,
    FusedMovingAvgObsFakeQuantize,
    HistogramObserver,
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
    PerChannelMinMaxObserver,
    QConfig,
    power_of_2,
    to_recipe,
)

pytestmark = pytest.mark.filterwarnings("ignore:Please use quant_min and quant_max")

PER_TENSOR = (MinMaxObserver, MovingAverageMinMaxObserver, HistogramObserver)
PER_CHANNEL = (PerChannelMinMaxObserver, MovingAveragePerChannelMinMaxObserver)
RANGES: list[dict[str, Any]] = [
    {"dtype": torch.quint8},
    {"dtype": torch.qint8},
    {"dtype": torch.int8, "quant_min": -127, "quant_max": 127},
    {"dtype": torch.quint8, "quant_min": 0, "quant_max": 15},
    {"dtype": torch.qint8, "reduce_range": True},
    {"dtype": torch.int16, "eps": 2**-12},
]


def settings() -> list[tuple[type, dict[str, Any]]]:
    found = []
    for kind in (*PER_TENSOR, *PER_CHANNEL):
        scheme = "per_channel" if kind in PER_CHANNEL else "per_tensor"
        for symmetry in ("symmetric", "affine"):
            qscheme = getattr(torch, f"{scheme}_{symmetry}")
            found += [(kind, {"qscheme": qscheme, **given}) for given in RANGES]
    return found


def batches() -> list[Tensor]:
    wide = torch.tensor([[1e-9], [0.003], [1.0], [700.0]])
    return [torch.randn(4, 50) * wide, 2 * torch.randn(4, 50) * wide + 0.1]


def observed(observer: nn.Module, data: list[Tensor]) -> nn.Module:
    for x in data:
        assert observer(x) is x
    return observer


def same(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> None:
    for x, y in zip(a, b, strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        assert torch.equal(x, y)


def nearest(value: float) -> Fraction:
    n = math.frexp(value)[1]
    while not Fraction(2) ** (2 * n - 1) < Fraction(value) ** 2 < Fraction(2) ** (2 * n + 1):
        n -= 1
    return Fraction(2) ** n


@pytest.mark.parametrize(("kind", "given"), settings())
def test_observers(kind: type, given: dict[str, Any]) -> None:
    """By default torch.ao's bits; with power_of_2_scale its scale rounded, and a new zero point."""
    data = batches()[: 1 if kind is HistogramObserver else 2]
    if kind is HistogramObserver:
        given, data = {**given, "bins": 64}, [data[0][2:3]]
    theirs = observed(getattr(ao, kind.__name__)(**given), data)
    default = observed(kind(**given), data)
    assert isinstance(default, type(theirs))
    same(default.calculate_qparams(), theirs.calculate_qparams())
    ours = observed(kind(power_of_2_scale=True, **given), data)
    (scale, zero), (float_scale, float_zero) = ours.calculate_qparams(), theirs.calculate_qparams()
    assert (scale.dtype, scale.shape) == (float_scale.dtype, float_scale.shape)
    assert (zero.dtype, zero.shape) == (float_zero.dtype, float_zero.shape)
    assert [Fraction(s) for s in scale.tolist()] == [nearest(s) for s in float_scale.tolist()]
    if "symmetric" in str(given["qscheme"]):
        assert torch.equal(zero, float_zero)
        return
    low = ours.min_val
    if kind is HistogramObserver:
        low = ours._non_linear_param_search()[0]
    lows = low.reshape(-1).clamp(max=0).tolist()
    expected = [
        max(ours.quant_min, min(ours.quant_max, ours.quant_min - round(Fraction(v) / Fraction(s))))
        for v, s in zip(lows, scale.tolist(), strict=True)
    ]
    assert zero.tolist() == expected


def test_edges_of_observers() -> None:
    for kind in (*PER_TENSOR, *PER_CHANNEL):
        ours = kind(power_of_2_scale=True)
        with pytest.warns(UserWarning, match="must run observer before"):
            same(ours.calculate_qparams(), (torch.tensor([1.0]), torch.tensor([0])))
        zeros = observed(ours, [torch.zeros(2, 2)]).calculate_qparams()[0]
        assert set(zeros.tolist()) == {2.0**-23}  # eps is a power of two
    ours = observed(MinMaxObserver(power_of_2_scale=True), [torch.tensor([1.0, 2.0])])
    assert [v.item() for v in ours.calculate_qparams()] == [2.0**-7, 0]  # 0 has a code, too
    ours = MinMaxObserver(power_of_2_scale=True, eps=0.3)
    assert observed(ours, [torch.zeros(2)]).calculate_qparams()[0].item() == 0.25
    with pytest.raises(ValueError, match=r"use torch\.per_channel_affine"):
        PerChannelMinMaxObserver(
            qscheme=torch.per_channel_affine_float_qparams, power_of_2_scale=True
        )
    with pytest.raises(NotImplementedError):  # torch.ao's own checks stay
        MinMaxObserver(qscheme=torch.per_channel_affine, power_of_2_scale=True)


def test_state_is_torch_ao_s() -> None:
    """Their checkpoints load into ours and the other way round."""
    theirs = observed(ao.PerChannelMinMaxObserver(), batches())
    ours = PerChannelMinMaxObserver(power_of_2_scale=True)
    ours.load_state_dict(theirs.state_dict())
    assert torch.equal(ours.max_val, theirs.max_val)
    ao.PerChannelMinMaxObserver().load_state_dict(ours.state_dict())


def fakes() -> list[tuple[type, dict[str, Any]]]:
    int8 = {"dtype": torch.qint8, "quant_min": -128, "quant_max": 127}
    channels = {**int8, "observer": MovingAveragePerChannelMinMaxObserver}
    return [
        (FakeQuantize, {}),
        (FakeQuantize, {**int8, "qscheme": torch.per_tensor_symmetric}),
        (FakeQuantize, {"observer": MovingAverageMinMaxObserver, "averaging_constant": 0.5}),
        (FakeQuantize, {**channels, "qscheme": torch.per_channel_symmetric, "ch_axis": 1}),
        (FusedMovingAvgObsFakeQuantize, {}),
        (FusedMovingAvgObsFakeQuantize, {**int8, "qscheme": torch.per_tensor_symmetric}),
        (FusedMovingAvgObsFakeQuantize, {**channels, "qscheme": torch.per_channel_symmetric}),
    ]


@pytest.mark.parametrize(("kind", "given"), fakes())
def test_fake_quantizers(kind: type, given: dict[str, Any]) -> None:
    theirs_given = dict(given)
    if "observer" in given:
        theirs_given["observer"] = getattr(ao, given["observer"].__name__)
    theirs, default = getattr(ao, kind.__name__)(**theirs_given), kind(**given)
    ours = kind(**given, power_of_2_scale=True)
    for x in batches():
        assert torch.equal(default(x), theirs(x))
        same((default.scale, default.zero_point), (theirs.scale, theirs.zero_point))
        y = ours(x)
        scale, zero = ours.activation_post_process.calculate_qparams()
        same((ours.scale, ours.zero_point), (scale, zero.to(ours.zero_point.dtype)))
        assert torch.equal(scale.frexp().mantissa, torch.full_like(scale, 0.5))
        steps = (
            x / (scale.reshape(1, -1) if given.get("ch_axis") else scale.reshape(-1, 1))
        ).round()
        low, high = ours.quant_min, ours.quant_max
        shape = (1, -1) if given.get("ch_axis") else (-1, 1)
        codes = (steps + zero.reshape(shape)).clamp(low, high) - zero.reshape(shape)
        assert torch.equal(y, codes * scale.reshape(shape))


def test_observing_stops_and_starts() -> None:
    model = nn.Sequential(FusedMovingAvgObsFakeQuantize(power_of_2_scale=True))
    model(torch.tensor([1.0, 2.0]))
    model.apply(torch_ao.disable_observer)
    before = model[0].scale.clone()
    assert model(torch.tensor([100.0])).item() < 3
    assert torch.equal(model[0].scale, before)
    model.apply(torch_ao.disable_fake_quant)
    assert model(torch.tensor([100.0])).item() == 100


def test_the_document_s_example() -> None:
    """The usage example of the founding document, with the names of this module."""
    observer = MinMaxObserver(power_of_2_scale=True)
    fake_quant = FakeQuantize(observer=MovingAverageMinMaxObserver, power_of_2_scale=True)
    qconfig = QConfig(
        activation=FakeQuantize.with_args(
            observer=MovingAverageMinMaxObserver, power_of_2_scale=True
        ),
        weight=FakeQuantize.with_args(observer=MovingAverageMinMaxObserver, power_of_2_scale=True),
    )
    x = torch.tensor([-1.0, 0.7, 2.0])
    observer(x), fake_quant(x)
    for made in (observer, fake_quant, qconfig.activation(), qconfig.weight()):
        made(x)
        scale, zero = made.calculate_qparams()  # 3 / 255 = 0.01176 is nearest to 2^-6 in log2
        assert (scale.item(), zero.item()) == (2.0**-6, 64)
    recipe = to_recipe(qconfig)
    assert str(recipe.weight) == str(recipe.input) == "uint8:tensor:pow2/nearest:asym"


def test_torch_ao_s_own_training_takes_them() -> None:
    """Eager QAT of torch.ao with our QConfig: every scale in the model is a power of two."""
    model = nn.Sequential(ao.QuantStub(), nn.Conv2d(1, 2, 3), nn.ReLU(), ao.DeQuantStub()).train()
    model.qconfig = power_of_2(torch_ao.get_default_qat_qconfig("onednn"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao says that it is deprecated
        ao.prepare_qat(model, inplace=True)
    model(torch.randn(2, 1, 8, 8)).sum().backward()
    fakes = [m for m in model.modules() if isinstance(m, ao.FakeQuantizeBase)]
    assert len(fakes) == 3  # of the input, the weight, the convolution's output
    for fake in fakes:
        assert isinstance(fake, FusedMovingAvgObsFakeQuantize)
        assert torch.equal(fake.scale.frexp().mantissa, torch.full_like(fake.scale, 0.5))
