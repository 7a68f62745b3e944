# SPDX-License-Identifier: BSD-3-Clause
"""Errors say which weight they are about, however the model came to be quantized."""

import copy

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.layers.model.names import tell_names
from blockscale.layers.parameters.hold import hold
from blockscale.layers.store import QWeight


def net() -> nn.Module:
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2)
    parts = {"a": nn.Linear(8, 8), "conv": nn.Conv1d(2, 2, 3), "attention": attention}
    return nn.ModuleDict(parts)


def calibrated(tmp_path) -> nn.Module:
    del tmp_path
    model = nn.Sequential(net()["a"])
    bs.calibrate(model, [torch.randn(3, 8)], bs.Recipe("int8", bias="int8"), progress=False)
    return nn.ModuleDict({"a": model[0], "b": net()})


def quantized(tmp_path) -> nn.Module:
    del tmp_path
    model = net()
    bs.quantize_(model, bs.Recipe("int8", bias="int8"))
    return model


def loaded(tmp_path) -> nn.Module:
    bs.save(quantized(tmp_path), tmp_path / "m")
    return bs.load(net(), tmp_path / "m")


def trained(tmp_path) -> nn.Module:
    del tmp_path
    return bs.convert(bs.prepare_qat(net(), bs.Recipe("int8", bias="int8")))


@pytest.mark.filterwarnings("ignore:blockscale")
@pytest.mark.parametrize("made", [quantized, loaded, trained])
def test_weights_and_biases(made, tmp_path) -> None:
    model = made(tmp_path)
    for name in ("a", "conv"):
        layer = model[name]
        for attribute in ("weight", "bias"):
            with pytest.raises(RuntimeError, match=rf"fill_ writes to {name}\.{attribute}, which"):
                getattr(layer, attribute).fill_(0)
    held = copy.deepcopy(model)["attention"]
    weight = QWeight.quantize(held.in_proj_weight, bs.parse("int8"))
    hold(held, "in_proj_weight", weight)
    tell_names(nn.ModuleDict({"attention": held}))
    with pytest.raises(RuntimeError, match=r"zero_ writes to attention\.in_proj_weight"):
        held.in_proj_weight.zero_()


def test_a_name_stays(tmp_path) -> None:
    model = calibrated(tmp_path)
    with pytest.raises(RuntimeError, match=r"writes to 0\.weight"):
        model["a"].weight.zero_()
