# SPDX-License-Identifier: BSD-3-Clause
"""Fake quantizers with power-of-two scales, compared with torch.ao itself."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.ao import quantization as ao

import blockscale as bs
from blockscale.compat import torch_ao
from blockscale.compat.torch_ao import (
    FakeQuantize,
    FusedMovingAvgObsFakeQuantize,
)
from tests.compat.torch_ao.batches import (
    batches,
    fakes,
    same,
)

pytestmark = pytest.mark.filterwarnings("ignore:Please use quant_min and quant_max")


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


@pytest.mark.filterwarnings("ignore:.*is deprecated")
@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.parametrize(("kind", "given"), fakes())
def test_torch_script(kind: type, given: dict[str, Any], enabled: bool) -> None:
    """Compiled, they compute what they do without: with the option off, what torch.ao's do."""
    ours = kind(**given, power_of_2_scale=enabled)
    scripted = torch.jit.script(kind(**given, power_of_2_scale=enabled))
    for x in batches():
        assert torch.equal(scripted(x), ours(x))
        same((scripted.scale, scripted.zero_point), (ours.scale, ours.zero_point))


def test_the_option_shows() -> None:
    assert "power_of_2_scale=True" in repr(FakeQuantize(power_of_2_scale=True))
    assert "power_of_2_scale=False" in repr(FusedMovingAvgObsFakeQuantize())


FORMATS = ["bfp8", "mxfp4", "nvfp4", "int4:group32:fp16", "int8_token", "bfp16", "nf4"]


@pytest.mark.parametrize("fmt", FORMATS)
def test_formats_are_bs_fake_quantize(fmt: str) -> None:
    """Values and gradients, and everything that torch.ao's have."""
    made = FakeQuantize(dtype=fmt)
    assert isinstance(made, ao.FakeQuantize)
    torch.manual_seed(0)
    x = torch.randn(4, 96) * 3
    ours, expected = x.clone().requires_grad_(), x.clone().requires_grad_()
    made(ours).square().sum().backward()
    bs.fake_quantize(expected, fmt).square().sum().backward()
    assert torch.equal(made(x), bs.fake_quantize(x, fmt))
    assert torch.equal(ours.grad, expected.grad)
    for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert torch.equal(other(x), made(x))
    assert str(bs.parse(fmt)) in repr(made)
    made.apply(torch_ao.disable_fake_quant)
    assert made(x) is x
    made.apply(torch_ao.enable_fake_quant)
    assert torch.equal(made(x), bs.fake_quantize(x, fmt))
    assert torch_ao.to_format(made) == made.format == bs.parse(fmt)


@pytest.mark.parametrize("make", [FakeQuantize, FusedMovingAvgObsFakeQuantize])
def test_static_formats_as_torch_ao_s(make: Any) -> None:
    """One scale for what was seen, where both can say it: scales, results, switches, state."""
    ours, theirs = make(dtype="uint8:tensor:fp32:asym:recip"), ao.FakeQuantize(dtype=torch.quint8)
    for step in range(4):
        torch.manual_seed(step)
        x = torch.randn(5, 7) * (1 + step)
        if step == 3:
            ours.apply(torch_ao.disable_observer)
            theirs.apply(torch_ao.disable_observer)
        assert torch.equal(ours(x), theirs(x))
        found = ours.calculate_qparams()
        same((found[0], found[1]), theirs.calculate_qparams())
    fresh = make(dtype="uint8:tensor:fp32:asym:recip")
    fresh.load_state_dict(ours.state_dict())
    assert torch.equal(fresh(x), theirs(x))  # its observer is off, too
    assert str(ours.qparams()) == str(fresh.qparams())


def test_which_observer_chooses() -> None:
    fmt, x = "int8", torch.tensor([[1.0, -4.0]])
    by_class = FakeQuantize(torch_ao.MinMaxObserver, dtype=fmt)
    by_arguments = FakeQuantize(
        torch_ao.MovingAverageMinMaxObserver.with_args(averaging_constant=0.5), dtype=fmt
    )
    inside = FakeQuantize(observer=ao.MinMaxObserver.with_args(dtype=fmt))
    for made in (by_class, by_arguments, inside):
        made(x)
        made(x / 2)
    assert by_class.qparams().scale.item() == inside.qparams().scale.item()
    assert by_arguments.qparams().scale.item() == pytest.approx(3 / 127)
    rounded = FakeQuantize(observer=ao.MinMaxObserver, power_of_2_scale=True, dtype=fmt)
    assert str(rounded.format) == "int8:tensor:pow2/nearest"
    assert FakeQuantize(dtype=fmt)(x) is not x
    still = FakeQuantize(dtype=fmt).apply(torch_ao.disable_observer)
    assert still(x) is x  # no scale yet


def test_what_a_format_leaves_nothing_to_say_of() -> None:
    class Own(FakeQuantize):
        pass

    with pytest.raises(TypeError, match=r"Own fake quantizes by its own rules .* FakeQuantize"):
        Own(dtype="bfp8")
    assert isinstance(Own(dtype=torch.qint8), Own)
    with pytest.raises(
        TypeError, match=r"quant_min, quant_max: a format .* already states its range"
    ):
        FakeQuantize(dtype="bfp8", quant_min=-1, quant_max=1)
    with pytest.raises(TypeError, match=r"is_dynamic: a format"):
        FakeQuantize(dtype="bfp8", is_dynamic=True)
    with pytest.raises(TypeError, match=r"observer='mse': torch.ao's fake quantizers take a class"):
        FakeQuantize(observer="mse", dtype="bfp8")
