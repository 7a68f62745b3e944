# SPDX-License-Identifier: BSD-3-Clause
"""Layers that stand in for a while."""

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.calibration.session import Session
from blockscale.calibration.walk.layers import quantized_so_far, standing_in
from blockscale.layers.layer import QLayer
from blockscale.layers.plan import plan_layers


def test_they_stand_in_and_go() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8))
    session = Session(
        model, plan_layers(model, bs.Recipe("int8", "int8:token:fp32")), None, strict=False
    )
    x, float_layer = torch.randn(3, 8), model[0]
    made = quantized_so_far(session, session.layers, inputs=True)
    with standing_in(model, made):
        assert isinstance(model[0], QLayer)
        with_inputs = model(x)
    assert model[0] is float_layer
    plain = nn.Sequential(float_layer)
    bs.quantize_(plain, bs.Recipe("int8", "int8:token:fp32"))
    assert torch.equal(with_inputs, plain(x))
    assert quantized_so_far(session, session.layers, inputs=False) == {}  # no codes are chosen yet
    with pytest.raises(KeyboardInterrupt), standing_in(model, made):
        raise KeyboardInterrupt
    assert model[0] is float_layer
