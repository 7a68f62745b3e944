"""Fake quantizers with power-of-two scales, compared with torch.ao itself."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.ao import quantization as ao

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
