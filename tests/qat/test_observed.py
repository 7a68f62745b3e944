# SPDX-License-Identifier: BSD-3-Clause
"""Layers that torch.ao prepared, as float layers; its flows are in tests/graph/adopt."""

import pytest
import torch
from torch import nn
from torch.ao import quantization as ao

from blockscale.compat import torch_ao as T
from blockscale.qat import observed


def conv(qconfig: ao.QConfig) -> nn.Module:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU()).train()
    model.qconfig = qconfig
    fused = ao.fuse_modules_qat(model, [["0", "1", "2"]])
    return ao.prepare_qat(fused)[0]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_layer_that_trained() -> None:
    layer = conv(T.QConfig("bfp8", "mxfp4"))
    assert observed.is_trained(layer)
    assert str(observed.weight_quantizer(layer).format) == "e2m1:group32:e8m0/floor"
    plain = observed.float_layer(layer)
    assert not observed.is_trained(plain)
    assert [type(each) for each in plain] == [nn.Conv2d, nn.ReLU]
    assert observed.weighted(plain) is plain[0]
    assert plain.training == layer.training
    own = ao.QConfig(*(T.FakeQuantize.with_args(dtype="mxfp4") for _ in range(2)))
    with pytest.raises(ValueError, match=r"a ConvBnReLU2d has trained .* FakeQuantize\.with_args"):
        observed.weight_quantizer(conv(own))


def test_other_layers() -> None:
    linear, norm = nn.Linear(4, 4), nn.LayerNorm(4)
    assert observed.float_layer(linear) is observed.weighted(linear) is linear
    assert observed.weight_quantizer(linear) is None
    linear.qconfig = norm.qconfig = T.QConfig("bfp8", "bfp8")
    assert observed.weight_quantizer(linear).part == "weight"
    assert observed.weight_quantizer(norm) is None  # vectors stay in float
    linear.qconfig = ao.default_qconfig
    assert observed.weight_quantizer(linear) is None  # torch.ao's own
    assert observed.weighted(empty := nn.Sequential()) is empty


def test_layouts_and_places() -> None:
    assert observed.layout_of(nn.Linear(2, 2)) == "plain"
    assert observed.layout_of(nn.Conv1d(2, 2, 1)) == "channels_last"
    grouped = nn.ConvTranspose2d(4, 4, 1, groups=2)
    assert observed.layout_of(grouped) == "transposed_channels_last:2"
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2)))
    observed.replace_layer(model, "0.0", nn.Identity())
    assert torch.equal(model(torch.ones(1, 2)), torch.ones(1, 2))
