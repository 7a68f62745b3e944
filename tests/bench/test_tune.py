# SPDX-License-Identifier: BSD-3-Clause
"""Launch choices are measured for every shape of a run."""

import json
from dataclasses import replace

import pytest

from blockscale.bench import tune as tuning
from blockscale.bench.groups import linear
from blockscale.bench.settings import GPU, Settings
from blockscale.bench.tune import Bound, Size, tune
from blockscale.kernels.cpu import _native
from tests.support.bench_runs import SETTINGS


def test_tuning_asks_for_every_shape_of_the_run():
    asked, said = [], []
    sizes = replace(GPU, linear={(64, 32): (1, 8)})

    def tuner(weight, given, shape):
        if weight.startswith("ternary"):
            raise ValueError("there is nothing to tune")
        asked.append((weight, given, shape))

    tune(Settings("cuda", sizes=sizes), said.append, tuner)
    assert ("int8:channel0:fp32", "int8:token:fp32", (8, 32, 64)) in asked
    assert ("e2m1:group16:e4m3", "", (1, 32, 64)) in asked
    assert len(asked) == 2 * (len(linear.GPU_RECIPES) - 1)
    assert "not tuned: ternary weights: there is nothing to tune" in said
    with pytest.raises(ValueError, match="the kernels of webgpu have no choices"):
        tune(replace(SETTINGS, device="webgpu"), said.append, tuner)


def test_the_cpu_has_choices_of_its_own(monkeypatch):
    asked = []
    monkeypatch.setattr("blockscale.bench.tune.tune_cpu", asked.append)
    tune(SETTINGS, print)
    assert asked == [print]


# The CPU's choices are measured, kept where clearly faster, and given back after an error.


@pytest.fixture(autouse=True)
def _table(monkeypatch, tmp_path):
    monkeypatch.setenv("BLOCKSCALE_TUNE_CACHE", str(tmp_path / "tune.json"))
    before = _native.tuning()
    yield
    _native.set_tuning(before)


def clocked(monkeypatch, seconds):
    """Times that are told, not taken: `seconds` of what is set in the library."""

    def timed(calls, use):
        found = {}
        for value, own in calls.items():
            use(value)
            found[value] = [seconds(_native.tuning(), call()) for call in own]
        return found

    monkeypatch.setattr(tuning, "measure", timed)


QUESTIONS = (
    Size("rows_bytes", (1 << 17, 1 << 18), lambda: [lambda: 0, lambda: 0]),
    Bound("few_of_bytes_float", (2, 4, 8, 16), lambda rows: [lambda: rows], above=False),
    Bound("threaded_elements", (2, 4, 8), lambda n: [lambda: n], above=True),
)


def test_what_is_clearly_faster_is_kept(monkeypatch, tmp_path):
    monkeypatch.setattr("torch.get_num_threads", lambda: 3)

    def seconds(now, size):
        if size == 0:
            return 1.0 if now["rows_bytes"] == 1 << 18 else 2.0
        below = size <= now["few_of_bytes_float"] and size < now["threaded_elements"]
        return 1.0 if below == (size <= 4) else 2.0

    clocked(monkeypatch, seconds)
    said = []
    found = tuning.tune_cpu(said.append, questions=QUESTIONS[:2])
    assert found == {"rows_bytes": 1 << 18, "few_of_bytes_float": 4}
    assert len(said) == 2 and "0.500 of the time" in said[0]
    ((entries),) = json.loads((tmp_path / "tune.json").read_text()).values()
    assert entries == {"3": found}
    assert {name: _native.tuning()[name] for name in found} == found


def test_what_is_not_clearly_faster_stays(monkeypatch):
    usual = {name: numbers[0] for name, numbers in _native.tuning_bounds().items()}
    clocked(
        monkeypatch, lambda now, size: 1.0 if now["rows_bytes"] == usual["rows_bytes"] else 0.98
    )
    assert tuning.tune_cpu(lambda text: None, questions=QUESTIONS[:1]) == {
        "rows_bytes": usual["rows_bytes"]
    }


def test_an_error_gives_the_choices_back(monkeypatch, tmp_path):
    before = _native.tuning()

    def failing(now, size):
        raise KeyboardInterrupt

    clocked(monkeypatch, failing)
    with pytest.raises(KeyboardInterrupt):
        tuning.tune_cpu(lambda text: None, questions=QUESTIONS)
    assert _native.tuning() == before and not (tmp_path / "tune.json").exists()
    (tmp_path / "tune.json").write_text("{")
    with pytest.raises(ValueError, match="delete it"):
        tuning.tune_cpu(lambda text: None, questions=QUESTIONS)


def test_times_are_taken_in_turns():
    asked = []
    found = tuning.measure({1: [lambda: None], 2: [lambda: None]}, asked.append)
    assert found.keys() == {1, 2} and all(t[0] > 0 for t in found.values())
    assert asked == [1, 2] * 6
