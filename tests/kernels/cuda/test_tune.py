# SPDX-License-Identifier: BSD-3-Clause
"""Measuring the ways to run a layer. Times need a GPU; what is decided around them does not."""

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from blockscale.kernels import cuda, rates
from blockscale.kernels.cuda import tune
from blockscale.kernels.cuda.matmul.choice import read


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A table of the test, the CPU in the GPU's place, and each candidate slower than the last."""
    if cuda.available() is not None or not cuda.interpreting():
        pytest.skip("for Triton's interpreter")
    monkeypatch.setenv("BLOCKSCALE_TUNE_CACHE", str(tmp_path / "mine.json"))
    make = torch.randn
    monkeypatch.setattr(torch, "randn", lambda *shape, device="": make(*shape))
    times = iter(range(1, 1000))
    monkeypatch.setattr(tune, "_milliseconds", lambda call: call() is not None and next(times))


@pytest.mark.parametrize(
    ("fmt", "input_fmt", "way"),
    [
        ("mxfp4", "", "tile"),
        ("int8_channel", "int8_token", "codes"),
        ("int4:group32:fp32", "", "blocks"),
    ],
)
def test_the_fastest_is_recorded(fmt: str, input_fmt: str, way: str, tmp_path: Path) -> None:
    """The first candidate, under the shape and the format's spelling, in the given table."""
    path = tmp_path / "other.json"
    best = tune.tune_linear(fmt, input_fmt, (2, 16, 64), path)
    assert best.way == way
    ((at, entries),) = json.loads(path.read_text()).items()
    what, spelling, device, _ = at.split("|")
    assert (what, device) == ("int8" if input_fmt else "weight", "interpreter")
    assert str(tune.parse(fmt)) == spelling
    assert read(entries["2,16,64"]) == best
    assert not rates.cache_file().exists()


def test_nothing_to_choose_is_an_error() -> None:
    with pytest.raises(ValueError, match="int16:token:fp32 at k = 64 has only one kernel"):
        tune.tune_linear("int16:token:fp32", "", (2, 8, 64))
