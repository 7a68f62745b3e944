# SPDX-License-Identifier: BSD-3-Clause
"""Real processes (gloo): N of them on shards choose what one process on everything chooses."""

import pytest
import torch

import blockscale as bs
from tests.calibration.observers.ranks import CASES, RANKS, shards, work
from tests.calibration.observers.seen import merges_exactly, seeing
from tests.support import fresh


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What each process ended with, from one spawn."""
    folder = tmp_path_factory.mktemp("ranks")
    fresh.ranks(work, folder, RANKS)
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


@pytest.mark.slow
@pytest.mark.some(6)
@pytest.mark.parametrize("case", range(len(CASES)), ids=[" ".join(case) for case in CASES])
def test_shards_choose_what_the_whole_chooses(results, case):
    spec, fmt = CASES[case]
    whole = seeing(spec, fmt, *(batch for shard in shards(spec) for batch in shard))
    for states, _, _ in results:
        found = bs.observers.make(spec, fmt)
        found.load_state_dict(states[case])
        assert found.describe().split(";")[0] == whole.describe().split(";")[0]
        assert int(found.nans) == 5 and int(found.infinities) == 1
        pairs = list(zip(found.range(), whole.range(), strict=True))
        if merges_exactly(spec):
            assert all(torch.equal(a, b) for a, b in pairs)
        elif spec == "mse:weighted" or spec == "mean":
            assert all(torch.allclose(a.float(), b.float(), rtol=1e-6) for a, b in pairs)
        first = results[0][0][case]
        assert all(torch.equal(first[name], states[case][name]) for name in first)


@pytest.mark.slow
def test_the_merged_moving_average_is_the_weighted_mean(results):
    case = CASES.index(("moving_average", "int8:tensor:fp32"))
    parts = [seeing(*CASES[case], *shard) for shard in shards("moving_average")[:2]]
    total = sum(part.finite * part.high.double() for part in parts)
    expected = total / sum(part.finite for part in parts)
    assert torch.allclose(results[2][0][case]["high"].double(), expected, rtol=1e-6)


@pytest.mark.slow
def test_nobody_saw_anything(results):
    for _, state, _ in results:
        assert int(state["samples"]) == 0 and state["counts"].numel() == 0


@pytest.mark.slow
def test_what_does_not_fit_is_refused_in_every_process(results):
    for _, _, words in results:
        assert all("different observers, or scales of different shapes" in text for text in words)
