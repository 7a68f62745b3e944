# SPDX-License-Identifier: BSD-3-Clause
"""QConv as a module: tests/ops/test_conv.py has what it computes."""

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import blockscale as bs
from blockscale.kernels.registry import unavailable
from blockscale.layers.conv import QConv

CONVS = [
    nn.Conv1d(4, 6, 3),
    nn.Conv1d(4, 6, 3, padding=2, padding_mode="replicate"),
    nn.Conv2d(4, 6, (3, 1), stride=(2, 1), padding=(1, 0)),
    nn.Conv2d(4, 6, 3, padding="same"),
    nn.Conv2d(4, 6, 3, padding=(2, 1), padding_mode="circular"),
    nn.Conv2d(4, 6, 3, dilation=2, groups=2, bias=False),
    nn.Conv3d(4, 6, (3, 1, 2), stride=(1, 2, 1), padding=(1, 0, 1)),
    nn.Conv3d(4, 6, 3, padding="same", dilation=2),
    nn.Conv3d(4, 6, 3, padding=1, padding_mode="replicate", groups=2),
]


def quantized(layer: nn.Module) -> nn.Module:
    model = nn.Sequential(layer)
    bs.quantize_(model, "int8_channel")
    return model[0]


@pytest.mark.parametrize("conv", CONVS, ids=str)
def test_settings_are_the_float_layers(conv: nn.Module) -> None:
    layer = quantized(conv)
    assert isinstance(layer, QConv)
    for name in ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation",
                 "groups", "padding_mode"):  # fmt: skip
        assert getattr(layer, name) == getattr(conv, name)
    assert f"kernel_size={conv.kernel_size}" in repr(layer)


@pytest.mark.parametrize("conv", CONVS, ids=str)
def test_padding_is_around_the_input_or_inside_the_convolution(conv: nn.Module) -> None:
    """Whichever it is: of ones the same sums as the float layer of the same weight."""
    layer = quantized(conv)
    assert not layer._around or not any(layer._inside)
    dense = copy.deepcopy(conv)
    dense.weight.data = layer.dequantize_weight()
    x = torch.ones(2, 4, *(7,) * len(conv.kernel_size))
    torch.testing.assert_close(layer(x), dense(x), rtol=0, atol=1e-5)


def test_blocks_run_over_the_channels_of_one_kernel_position() -> None:
    conv = nn.Conv2d(8, 3, 2)
    model = nn.Sequential(conv)
    weight = conv.weight.detach().clone()
    bs.quantize_(model, "int4:group8:fp32")
    codes = bs.quantize(weight.movedim(1, -1).reshape(3, 32), "int4:group8:fp32")
    assert model[0].weight.scale.shape == (3, 4)  # one for each of the four positions
    assert torch.equal(model[0].weight.codes, codes.packed)


@pytest.mark.parametrize("shape", [(2, 5, 9), (3, 9), (9,), (1, 2, 4, 9)])
def test_inputs_that_do_not_fit_are_refused(shape: tuple[int, ...]) -> None:
    layer = quantized(nn.Conv1d(4, 6, 3))
    with pytest.raises(ValueError, match=r"expected an input \[batch, 4, w\], found"):
        layer(torch.ones(shape))
    with pytest.raises(ValueError, match=r"expected an input \[batch, 4, d, h, w\], found"):
        quantized(nn.Conv3d(4, 6, 3))(torch.ones(shape))
    assert F.conv1d(torch.ones(2, 4, 9), layer.dequantize_weight()).shape == (2, 6, 7)


LAST = {2: torch.channels_last, 3: torch.channels_last_3d}


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["int8_channel", bs.Recipe("int8_channel", input="int8"),
                                    bs.Recipe("mxfp4", input="mxfp8", output="mxfp8")])  # fmt: skip
@pytest.mark.parametrize("conv", [nn.Conv2d(4, 6, 3), nn.Conv2d(4, 6, 3, padding="same", groups=2),
    nn.Conv3d(4, 6, 2), nn.ConvTranspose2d(4, 6, 3), nn.ConvTranspose3d(4, 6, 2, stride=2)],
    ids=str)  # fmt: skip
def test_channels_that_lie_last_in_memory_do_so_afterwards(conv: nn.Module, recipe) -> None:
    model = nn.Sequential(copy.deepcopy(conv))
    bs.quantize_(model, recipe)
    last = LAST[len(conv.kernel_size)]
    x = torch.randn(2, 4, *(7,) * len(conv.kernel_size))
    plain, y = model(x), model(x.contiguous(memory_format=last))
    assert plain.is_contiguous()
    assert not y.is_contiguous()
    assert y.is_contiguous(memory_format=last)
    assert y.stride() == conv.to(memory_format=last)(x.contiguous(memory_format=last)).stride()
    torch.testing.assert_close(y, plain, rtol=0, atol=1e-5)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert compiled(x.contiguous(memory_format=last)).stride() == y.stride()


def test_an_image_of_one_pixel_is_contiguous_as_ever() -> None:
    """Its memory is the same either way, and programs read strides."""
    layer = quantized(nn.Conv2d(4, 6, 1))
    y = layer(torch.ones(2, 4, 1, 1).contiguous(memory_format=torch.channels_last))
    assert y.is_contiguous()


@pytest.mark.skipif(unavailable("cpu") is not None, reason="no native kernels")
def test_the_ledger_says_where_a_layer_is_slower_than_the_float_one() -> None:
    """No slow way without a word: its figure and its reason, and nothing of a faster one."""
    model = nn.Sequential(nn.Conv2d(256, 128, 1), nn.Conv2d(3, 64, 7), nn.ConvTranspose2d(64, 8, 2))
    alone = bs.quantize_(copy.deepcopy(model), "int8_channel")
    told = "on this CPU 1.1 to 1.8 of float32's time: the same products, of a weight that is"
    assert alone["0"].here.startswith(told)
    assert "of codes decoded first" in alone["1"].here and not alone["2"].here
    assert told in str(alone) and alone.to_dict()["entries"][0]["here"].startswith(told)
    assert "here" not in alone.to_dict()["entries"][2]
    other = bs.quantize_(copy.deepcopy(model), "int8_channel")["0"]
    assert dataclasses.replace(other, here="") == alone["0"]  # of this machine, not of the model
    both = bs.quantize_(copy.deepcopy(model), bs.Recipe("int8_channel", "int8_token"))
    assert "each pixel has scales of its own" in both["0"].here
    whole = bs.quantize_(copy.deepcopy(model), bs.Recipe("int8_channel", "int8"))
    assert not whole["1"].here


@pytest.mark.skipif(unavailable("cpu") is not None, reason="no native kernels")
def test_a_layer_that_may_be_slower_stays_in_float_where_that_is_asked() -> None:
    """Only those that the ledger says it of, with its words; their formats count."""
    model = nn.Sequential(
        nn.Conv2d(240, 240, 5, groups=240),
        nn.Conv2d(240, 64, 3),
        nn.Conv2d(64, 64, 1),
        nn.Linear(8, 8),
    )
    for recipe in (bs.Recipe("int8_channel", "uint8"), bs.Recipe("int8_channel")):
        plain = bs.quantize_(copy.deepcopy(model), recipe)
        slow = [entry.name for entry in plain if entry.here]
        assert slow == (["0"] if recipe.input else slow) and slow
        fast = copy.deepcopy(model)
        ledger = bs.quantize_(fast, recipe, faster=True)
        assert [entry.name for entry in ledger if entry.status == "kept"] == slow
        for name, layer in fast.named_children():
            assert (type(layer) is type(model[int(name)])) == (name in slow)
            if name in slow:
                assert (
                    ledger[name].reason == f"it would not be sure to be faster: {plain[name].here}"
                )
            else:
                assert ledger[name] == plain[name]
