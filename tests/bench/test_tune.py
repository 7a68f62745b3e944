# SPDX-License-Identifier: BSD-3-Clause
"""Launch choices are measured for every shape of a run."""

from dataclasses import replace

import pytest

from blockscale.bench.groups import linear
from blockscale.bench.settings import GPU, Settings
from blockscale.bench.tune import tune
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
    monkeypatch.setattr("blockscale.bench.tune_cpu.tune", asked.append)
    tune(SETTINGS, print)
    assert asked == [print]
