# SPDX-License-Identifier: BSD-3-Clause
"""Whoever listens hears of every batch; the bar is drawn on terminals alone."""

from typing import Any

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.calibration.batches import BatchBar
from blockscale.calibration.calibrate import calibrate
from blockscale.core.work import Progress


class Recorder(Progress):
    def __init__(self) -> None:
        self.told: list[Any] = []

    def start(self, total: int | None) -> None:
        self.told.append(total)

    def advance(self) -> None:
        self.told.append("batch")

    def close(self) -> None:
        self.told.append("closed")


def test_progress_counts_the_batches_of_all_passes() -> None:
    model, told = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), Recorder()
    batches = [torch.randn(2, 8)] * 3
    calibrate(model, batches, bs.Recipe("int8", "int8"), "min_max", weight="gptq", progress=told)
    assert told.told == [9, *["batch"] * 9, "closed"]
    told = Recorder()
    calibrate(nn.Sequential(nn.Linear(8, 8)), iter(batches), "int8", progress=told)
    assert told.told == [None, *["batch"] * 3, "closed"]
    told = Recorder()
    with pytest.raises(RuntimeError):
        calibrate(nn.Sequential(nn.Linear(7, 8)), batches, "int8", progress=told)
    assert told.told == [3, "closed"]


def test_the_bar_is_for_terminals(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for lively in (False, True):
        monkeypatch.setattr("sys.stderr.isatty", lambda lively=lively: lively)
        bar = BatchBar()
        bar.start(2)
        bar.advance()
        bar.advance()
        bar.close()
        out, err = capsys.readouterr()
        assert out == ""
        assert ("2 of 2 batches" in err) == lively


def test_the_time_left_is_that_of_what_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    bar = BatchBar()
    bar.start(50, 10)  # ten of an earlier run took no time of this one
    assert "left" not in bar._line()
    now[0] += 20
    bar.advance(amount=5)
    assert bar._line().endswith("15 of 50 batches, 2:20 left")
    bar.advance(amount=35)
    assert "left" not in bar._line()
    bar.start(None)
    bar.advance()
    assert bar._line() == "calibrating: 1 batches"
