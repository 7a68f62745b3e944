# SPDX-License-Identifier: BSD-3-Clause
"""Formats as the dtype of torch.ao's observers, compared with bs.observers and with torch.ao's."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.ao import quantization as ao

import blockscale as bs
from blockscale.compat import torch_ao as T
from blockscale.compat.torch_ao.blocks import FormatObserver, FormatValues, spec_of
from blockscale.core.pack import from_stored, to_stored

STATIC = ["int8", "e4m3:tensor:fp32", "int8:channel-1:fp32", "uint8:tensor:pow2/nearest:asym"]
KINDS = [
    (T.MinMaxObserver, "min_max"),
    (T.PerChannelMinMaxObserver, "min_max"),
    (T.MovingAverageMinMaxObserver, "moving_average"),
    (T.MovingAveragePerChannelMinMaxObserver, "moving_average"),
    (T.HistogramObserver, "mse"),
]
CASES = [(*pair, fmt) for pair in KINDS for fmt in (STATIC if pair[1] != "mse" else STATIC[:1])]
AFFINE = "uint8:tensor:fp32:asym:recip"
WEIGHTS = {
    "int8:channel0:fp32:half:recip": ao.PerChannelMinMaxObserver.with_args(
        dtype=torch.qint8, qscheme=torch.per_channel_symmetric
    ),
    "int8:channel0:fp32:recip": ao.PerChannelMinMaxObserver.with_args(
        dtype=torch.qint8, qscheme=torch.per_channel_symmetric, quant_min=-127, quant_max=127
    ),
    "int8:tensor:fp32:half:recip": ao.MinMaxObserver.with_args(
        dtype=torch.qint8, qscheme=torch.per_tensor_symmetric
    ),
    "int4:channel0:pow2/nearest:half": T.PerChannelMinMaxObserver.with_args(
        dtype=torch.qint8, qscheme=torch.per_channel_symmetric, quant_min=-8, quant_max=7,
        power_of_2_scale=True,
    ),
}  # fmt: skip


def batches(*shape: int) -> list[Tensor]:
    torch.manual_seed(3)
    return [torch.randn(*shape) * (1 + i) for i in range(3)]


@pytest.mark.parametrize(("kind", "name", "fmt"), CASES)
def test_static_scales_are_those_of_our_observers(kind: Any, name: str, fmt: str) -> None:
    ours, expected = kind(dtype=fmt), bs.observers.make(name, fmt)
    assert ours.missing
    for x in batches(4, 12):
        assert ours(x) is x
        expected.observe(x)
    assert str(ours.qparams()) == str(expected.qparams())
    assert not ours.missing
    for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert str(other.qparams()) == str(expected.qparams())
    fresh = kind(dtype=fmt)
    fresh.load_state_dict(ours.state_dict())
    assert str(fresh.qparams()) == str(expected.qparams())


def test_classes_of_torch_ao_s_own_kind() -> None:
    for given in ("bfp8", bs.parse("mxfp4"), "int4:group32:fp16"):
        made = T.MinMaxObserver.with_args(dtype=given)()
        assert isinstance(made, ao.ObserverBase)
        assert made.format == bs.parse(given)
        assert T.MinMaxObserver(given).format == made.format  # its first argument
        assert str(made.format) in repr(made)
    assert T.to_format(T.MinMaxObserver(dtype="bfp8")) == bs.parse("bfp8")
    assert T.PlaceholderObserver(dtype="bfp8").format == bs.parse("bfp8")
    power = T.MinMaxObserver(dtype="int8", power_of_2_scale=True)
    assert str(power.format) == "int8:tensor:pow2/nearest"
    assert isinstance(T.MinMaxObserver(dtype=torch.quint8), ao.MinMaxObserver)


@pytest.mark.parametrize("fmt", WEIGHTS)
def test_weights_in_formats_of_torch_ao_s(fmt: str) -> None:
    """Its own qscheme, limits, scales and zero points."""
    ours, theirs = T.MinMaxObserver(dtype=fmt, part="weight"), WEIGHTS[fmt]()
    for names in ("qscheme", "quant_min", "quant_max", "dtype"):
        assert getattr(ours, names) == getattr(theirs, names)
    for w in batches(6, 10):
        ours(w)
    theirs(w)  # a weight is what it is now
    for a, b in zip(ours.calculate_qparams(), theirs.calculate_qparams(), strict=True):
        assert torch.equal(a, b.to(a.dtype))


def test_activations_in_a_format_of_torch_ao_s() -> None:
    ours, theirs = T.MinMaxObserver(dtype=AFFINE), ao.MinMaxObserver()
    assert (ours.qscheme, ours.quant_min, ours.quant_max) == (torch.per_tensor_affine, 0, 255)
    for x in batches(3, 5):
        ours(x)
        theirs(x)
    for a, b in zip(ours.calculate_qparams(), theirs.calculate_qparams(), strict=True):
        assert torch.equal(a, b.to(a.dtype))


@pytest.mark.parametrize(
    ("fmt", "part"),
    [
        ("bfp8", "input"), ("mxfp4", "weight"), ("int8", "input"), ("int8", "weight"),
        (AFFINE, "weight"), ("int8:channel0:fp32:half:recip", "input"),
        ("uint16:tensor:fp32:asym:recip", "input"),
        ("uint8:tensor:fp32:asym:recip:down", "input"), ("int8:channel1:fp32:recip", "weight"),
        ("int8:channel0:fp16:recip", "weight"), ("uint8:tensor:fp32:asym", "input"),
    ],
)  # fmt: skip
def test_what_torch_ao_has_not(fmt: str, part: str) -> None:
    made = T.MinMaxObserver(dtype=fmt, part=part)
    made(torch.randn(4, 64))
    assert made.qscheme is made.quant_min is None
    with pytest.raises(ValueError, match=r"torch.ao has no qscheme for .*from_quantize_fx"):
        made.calculate_qparams()


@pytest.mark.parametrize("shape", [(6, 10), (4, 3, 5), (4, 40, 3, 3), (4, 3, 2, 2, 2)])
@pytest.mark.parametrize("fmt", ["bfp8", "mxfp4", "int8_channel"])
def test_values_of_weights(fmt: str, shape: tuple[int, ...]) -> None:
    """As layers store them: of convolutions with input channels last."""
    w = batches(*shape)[0].requires_grad_()
    y = T.MinMaxObserver(dtype=fmt, part="weight").values()(w)
    layout = "channels_last" if w.ndim > 2 else "plain"
    stored = bs.fake_quantize(to_stored(w, layout).contiguous(), fmt)
    assert torch.equal(y, from_stored(stored, layout, w.shape))
    y.sum().backward()
    assert w.grad is not None
    assert bool((w.grad == 1).any())


def test_values_along_a_dimension() -> None:
    x = batches(2, 40, 3, 5)[0]
    y = T.MinMaxObserver(dtype="mxfp4", ch_axis=1).values()(x)
    assert torch.equal(y, bs.fake_quantize(x.movedim(1, -1), "mxfp4").movedim(-1, 1))
    static = T.MinMaxObserver(dtype="int8:channel-1:fp32", ch_axis=1)
    static(x)
    assert static.qparams().scale.shape == (1, 40)
    expected = bs.fake_quantize(x, "int8:channel1:fp32")
    assert torch.equal(static.values()(x), expected)


def test_a_transposed_convolution_says_its_layout() -> None:
    conv = nn.ConvTranspose2d(4, 6, 3, groups=2)
    made = T.MinMaxObserver(dtype="int8_channel", part="weight").values(
        "transposed_channels_last:2"
    )
    quantized = nn.Sequential(copy.deepcopy(conv))
    bs.quantize_(quantized, "int8_channel")
    assert torch.equal(made(conv.weight), quantized[0].weight.dequantize())


def test_what_is_refused() -> None:
    with pytest.raises(
        TypeError, match=r"qscheme: a format \(int8.*\) already states .*: leave it out"
    ):
        T.MinMaxObserver(dtype="bfp8", qscheme=torch.per_tensor_symmetric)
    with pytest.raises(TypeError, match=r"quant_min, quant_max: a format .* leave them out"):
        T.MinMaxObserver(dtype="bfp8", quant_min=-8, quant_max=7)
    with pytest.raises(ValueError, match="part 'bias'; choose from input, weight"):
        FormatObserver("bfp8", part="bias")
    with pytest.raises(ValueError, match="PlaceholderObserver records nothing, and int8"):
        T.PlaceholderObserver(dtype="int8")
    with pytest.raises(
        ValueError,
        match=r"unknown format 'fp99': did you mean fp8, bfp8, nvfp4\? named formats are",
    ):
        T.MinMaxObserver(dtype="fp99")
    with pytest.raises(ValueError, match=r"are chosen from each tensor: bs.choose_qparams"):
        T.MinMaxObserver(dtype="bfp8").qparams()
    with pytest.raises(ValueError, match="saw no data"):
        T.MinMaxObserver(dtype="int8").values()

    class Own(T.MinMaxObserver):
        pass

    with pytest.raises(TypeError, match=r"Own chooses one scale .* use one of"):
        Own(dtype="bfp8")
    with pytest.raises(TypeError, match="RecordingObserver chooses one scale"):
        spec_of(ao.RecordingObserver, {})
    assert spec_of(Own, {"averaging_constant": 0.5}, users=True) == "min_max:0.5"


def test_a_repr_says_it() -> None:
    values = T.MinMaxObserver(dtype="bfp8", ch_axis=1).values()
    assert isinstance(values, FormatValues)
    assert "ch_axis=1" in repr(values)
    assert "QInput('int8:group64:e8m0/floor', dynamic)" in repr(values)
    assert "observer='min_max'" in repr(T.MinMaxObserver(dtype="int8"))
