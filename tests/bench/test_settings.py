# SPDX-License-Identifier: BSD-3-Clause
"""What a run measures is a value: what it picks, and what a file says of it."""

import json
from dataclasses import replace

import pytest
import torch

from blockscale.bench import run
from blockscale.bench.groups import linear
from blockscale.bench.settings import FULL, GPU, QUICK, TINY, Settings, sizes

AHEAD = Settings()  # what a full run would be


def test_settings_of_a_gpu(monkeypatch):
    monkeypatch.setattr("blockscale.bench.requests.last_cache", lambda device: 50 << 20)
    ours = Settings("cuda:1", sizes=GPU)
    assert (ours.kind, ours.dtype, ours.full) == ("cuda", torch.bfloat16, True)
    assert sizes("cuda:1", quick=False) is GPU
    assert sizes("cpu", quick=True) is QUICK
    assert linear.baseline(ours) == "torch bf16"
    names = [case.name for case in run.every_case(ours)]
    assert len(names) == len(set(names))
    assert "quantize/mxfp4/16384x16384/bfloat16" in names
    assert "linear/8192x28672/m=8192" in names


def test_what_is_quick_is_a_part(tmp_path):
    quick = Settings(quick=True, sizes=QUICK)
    assert not quick.full
    assert AHEAD.full
    assert not replace(AHEAD, peers=False).full
    assert not replace(AHEAD, sizes=TINY).full
    assert len(list(run.every_case(quick))) < len(list(run.every_case(AHEAD))) / 2


@pytest.mark.parametrize("seconds", [-1.0, -1e-9, float("nan")])
def test_negative_seconds(seconds):
    with pytest.raises(ValueError, match=f"seconds must be >= 0, got {seconds:g}"):
        Settings(seconds=seconds)


def test_names_and_formats_that_are_picked():
    some = Settings(only="linear", formats=("mxfp4",))
    assert some.wants("linear/256x32/m=1") and not some.wants("quantize/mxfp4")
    assert replace(some, only="linear/*/m=1").wants("linear/256x32/m=1")
    assert not replace(some, only="linear/*/m=1").wants("linear/256x32/m=16")
    assert some.picks("mxfp4") and some.picks("e2m1:group32:e8m0") and not some.picks("mxfp8")
    assert AHEAD.wants("anything") and AHEAD.picks("mxfp8")


def test_plain_data():
    data = AHEAD.to_dict()
    assert json.loads(json.dumps(data)) == data
    assert data["sizes"]["linear"]["384x1536"] == [2048]
    assert data["full"] is True
    assert replace(AHEAD, formats=("mxfp4",)).to_dict()["formats"] == ["mxfp4"]
    assert sizes("cpu", quick=False) is FULL
