# SPDX-License-Identifier: BSD-3-Clause
"""Observers with power-of-two scales, compared with torch.ao itself and with rationals."""

import io
import math
import warnings
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.ao import quantization as ao

import blockscale as bs
from blockscale.compat import torch_ao
from blockscale.compat.torch_ao import (
    FakeQuantize,
    HistogramObserver,
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
    PerChannelMinMaxObserver,
    PlaceholderObserver,
    to_format,
)
from tests.compat.torch_ao.batches import (
    batches,
    same,
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


def observed(observer: nn.Module, data: list[Tensor]) -> nn.Module:
    for x in data:
        assert observer(x) is x
    return observer


def nearest(value: float) -> Fraction:
    n = math.frexp(value)[1]
    while not Fraction(2) ** (2 * n - 1) < Fraction(value) ** 2 < Fraction(2) ** (2 * n + 1):
        n -= 1
    return Fraction(2) ** n


@pytest.mark.some(14)
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


def scripted(module: nn.Module, data: list[Tensor]) -> torch.jit.ScriptModule:
    """Compiled, given the data, saved and loaded again."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that TorchScript is deprecated
        made = torch.jit.script(module)
        for x in data:
            assert torch.equal(made(x), x)
        torch.jit.save(made, file)
        file.seek(0)
        return torch.jit.load(file)


@pytest.mark.pairs
@pytest.mark.some(4)
@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.parametrize("kind", [*PER_TENSOR, *PER_CHANNEL])
@pytest.mark.parametrize("symmetry", ["affine", "symmetric"])
def test_torch_script(kind: type, symmetry: str, enabled: bool) -> None:
    """As torch.ao's own classes do, and with the same numbers as without it."""
    scheme = "per_channel" if kind in PER_CHANNEL else "per_tensor"
    given: dict[str, Any] = {"qscheme": getattr(torch, f"{scheme}_{symmetry}")}
    data = batches()
    ours = scripted(kind(power_of_2_scale=enabled, **given), data).calculate_qparams()
    same(ours, observed(kind(power_of_2_scale=enabled, **given), data).calculate_qparams())
    if not enabled:
        theirs = scripted(getattr(ao, kind.__name__)(**given), data)
        same(ours, theirs.calculate_qparams())


def test_a_placeholder_in_torch_script() -> None:
    scripted(PlaceholderObserver(dtype=torch.float16), batches())


@pytest.mark.parametrize("kind", [*PER_TENSOR, *PER_CHANNEL, PlaceholderObserver])
def test_the_option_shows(kind: type) -> None:
    plain = repr(kind())
    assert plain == repr(getattr(ao, kind.__name__)())[:-1] + ", power_of_2_scale=False)"
    assert repr(kind(power_of_2_scale=True)) == plain.replace("False)", "True)")


def test_a_range_beyond_float32() -> None:
    """high - low overflows; the format takes the largest float for it, and so do these."""
    x = torch.tensor([-3e38, 3e38])
    observer = observed(MinMaxObserver(power_of_2_scale=True), [x])
    scale, zero_point = bs.choose_qparams(x, to_format(observer))
    same(observer.calculate_qparams(), (scale, zero_point))


@pytest.mark.parametrize("form", ["bfp8", bs.parse("mxfp8")])
def test_a_format_as_dtype(form: object) -> None:
    """test_blocks.py is about what comes then."""
    for made in (MinMaxObserver(dtype=form), MinMaxObserver(form), FakeQuantize(dtype=form)):
        assert made.format == bs.parse(form)
    assert not hasattr(MinMaxObserver(), "format")


def test_the_rounding_is_beside_the_observers() -> None:
    """Where code written for torch.ao.quantization looks for it."""
    assert torch_ao.round_to_power_of_2 is bs.round_to_power_of_2
    assert torch_ao.round_to_power_of_2(torch.tensor([0.3, 3.0])).tolist() == [0.25, 4.0]
