# SPDX-License-Identifier: BSD-3-Clause
"""Where a read tensor has its numbers."""

from pathlib import Path

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.layers import model as announce
from blockscale.layers.store import QWeight
from blockscale.layers.weight_source import ReadTensor, Source, dense, traced, write_error
from blockscale.layers.weight_tensor import WeightTensor


def test_floats_are_made_once() -> None:
    made = []

    def floats() -> torch.Tensor:
        made.append(1)
        return torch.ones(2, 3)

    source = Source(torch.Size((2, 3)), torch.float32, torch.device("cpu"), "fc.weight", None,
                    "plain", False, floats)  # fmt: skip
    read: ReadTensor = WeightTensor(source)
    assert made == []
    assert torch.equal(dense([read, {"a": read}])[1]["a"], torch.ones(2, 3))
    assert source.floats() is source.floats()
    assert made == [1]
    part = read.view_of(torch.Size((3,)), None, lambda: torch.zeros(3))
    assert (part.shape, part.source.name, part.source.owner) == ((3,), "fc.weight", None)


def test_what_is_said_of_writes() -> None:
    weight = QWeight.quantize(torch.randn(4, 32), bs.parse("mxfp4"))
    for name, pattern in (("a.fc.weight", "a.fc"), ("a.proj", "a.proj"), ("", "the layer")):
        weight.name = name
        assert f"skip=['{pattern}']" in str(write_error("zero_", weight.source()))


def test_only_traced_programs_get_floats() -> None:
    assert not traced()
    seen = []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(traced())
        return x + int(traced())

    compiled = torch.compile(look, backend="eager")
    assert compiled(torch.zeros(1)).item() == 1


# Whoever listens hears of every model that got quantized layers.


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
