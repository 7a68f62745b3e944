"""torch.ao's observers as formats, which have their bits."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.ao import quantization as ao

import blockscale as bs
from blockscale.compat.torch_ao import (
    FakeQuantize,
    MinMaxObserver,
    PerChannelMinMaxObserver,
    PlaceholderObserver,
    to_format,
)
from tests.compat.torch_ao.configurations import (
    AFFINE,
    CHANNELS,
    FORMATS,
    SYMMETRIC,
    given,
)

pytestmark = pytest.mark.filterwarnings("ignore:Please use quant_min and quant_max")


def values() -> Tensor:
    wide = torch.randn(6, 300) * torch.tensor([1e-5, 1e-2, 1.0, 1.0, 50.0, 1e6])[:, None]
    return torch.cat([wide, (wide * 64).round() / 128])


@pytest.mark.parametrize(("arguments", "fmt"), FORMATS + CHANNELS)
def test_formats_have_torch_ao_s_bits(arguments: dict[str, Any], fmt: str) -> None:
    """Values and scales of torch.ao's fake quantizer, wherever its eps does not decide."""
    kind = ao.PerChannelMinMaxObserver if "channel" in fmt else ao.MinMaxObserver
    for x in (values(), values().abs(), -values()[:2]):
        fake = ao.FakeQuantize(kind, **arguments)
        found = to_format(fake)
        assert str(found) == fmt
        assert to_format(fake.activation_post_process) == found
        expected = fake(x)
        within = (fake.scale > 2**-23).reshape(-1, 1)
        assert torch.equal(
            torch.where(within, bs.fake_quantize(x, found), 0), torch.where(within, expected, 0)
        )
        scale = bs.choose_qparams(x, found)[0].flatten()
        assert torch.equal(scale[within.flatten()], fake.scale[within.flatten()])


@pytest.mark.parametrize(
    "arguments", [arguments for arguments, fmt in FORMATS if "half" not in fmt]
)
def test_power_of_two_formats_have_its_bits(arguments: dict[str, Any]) -> None:
    for x in values()[2:].split(1):
        fake = FakeQuantize(MinMaxObserver, power_of_2_scale=True, **arguments)
        assert torch.equal(fake(x), bs.fake_quantize(x, to_format(fake)))


def test_half_becomes_full_under_powers_of_two() -> None:
    """amax / 127 is rounded instead of amax / 127.5: one exponent more where √2 is between them."""
    amax = torch.linspace(1, 2, 2001)
    ratio = []
    for value in amax.tolist():
        observer = MinMaxObserver(**given(torch.qint8, SYMMETRIC), power_of_2_scale=True)
        x = torch.tensor([value])
        observer(x)
        assert str(to_format(observer)) == "int8:tensor:pow2/nearest:full"
        ratio.append(
            (bs.choose_qparams(x, to_format(observer))[0] / observer.calculate_qparams()[0]).item()
        )
    assert set(ratio) == {1.0, 2.0}
    differs = [a / 127 for a, r in zip(amax.tolist(), ratio, strict=True) if r == 2]
    assert all(s / 2**0.5 * 128 > 1 > s / 2**0.5 * 128 * 127 / 127.5 for s in differs)
    assert 1 <= len(differs) <= 12  # of 2001: about 0.4 %


FLOAT_ZERO = torch.per_channel_affine_float_qparams


@pytest.mark.parametrize(
    ("message", "observer"),
    [
        (r"the affine range 0 \.\.\. 100 is not", MinMaxObserver(quant_min=0, quant_max=100)),
        (
            r"symmetric range -127 \.\.\. 128",
            MinMaxObserver(**given(torch.quint8, SYMMETRIC, 0, 255)),
        ),
        ("affine range -127", MinMaxObserver(**given(torch.qint8, AFFINE, -127, 127))),
        (r"dtype torch\.qint32 has no integers", MinMaxObserver(dtype=torch.qint32)),
        ("no integer zero point", PerChannelMinMaxObserver(qscheme=FLOAT_ZERO)),
        (r"PlaceholderObserver of dtype torch\.float16", PlaceholderObserver(dtype=torch.float16)),
        ("has a fixed scale: give it to quantize_", ao.FixedQParamsObserver(1 / 256, 0)),
        ("NoopObserver of dtype", ao.NoopObserver()),
        ("Linear of dtype None has no integers", nn.Linear(2, 2)),
    ],
)
def test_what_is_no_format(message: str, observer: nn.Module) -> None:
    with pytest.raises(ValueError, match=message):
        to_format(observer)
