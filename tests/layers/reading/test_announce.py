# SPDX-License-Identifier: BSD-3-Clause
"""Whoever listens hears of every model that got quantized layers."""

from pathlib import Path

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.layers.reading import announce


def test_every_way_is_announced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    heard: list[tuple[nn.Module, bs.Recipe | None]] = []
    monkeypatch.setattr(announce, "listeners", [lambda *told: heard.append(told)])
    model = nn.Sequential(nn.Linear(32, 8))
    bs.quantize_(model, "int8")
    assert heard.pop() == (model, bs.Recipe("int8"))
    bs.save(model, tmp_path / "a.safetensors")
    loaded = bs.load(nn.Sequential(nn.Linear(32, 8)), tmp_path / "a.safetensors")
    assert heard.pop() == (loaded, None)
    trained = nn.Sequential(nn.Linear(32, 8))
    bs.prepare_qat(trained, "int8")
    bs.convert(trained)
    assert heard.pop() == (trained, None)
    given = nn.Sequential(nn.Linear(32, 8))
    bs.calibrate(given, [torch.ones(1, 32)], bs.Recipe("int8", input="int8:tensor:fp32"))
    assert heard.pop()[0] is given
    assert not heard
