# SPDX-License-Identifier: BSD-3-Clause
"""Contestants and what is asked of their times."""

import warnings

import pytest

from blockscale.bench.case import Contestant, best
from blockscale.bench.timing import Racer, Timing, race
from tests.support.bench_runs import ticking


def test_warnings_of_peers_stay_inside():
    def noisy():
        warnings.warn("old", DeprecationWarning, stacklevel=1)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        race([Racer(Contestant("theirs", "peer", noisy), 0.0, ticking(1.0))])
        with pytest.raises(DeprecationWarning):
            Racer(Contestant("mine", "ours", noisy), 0.0, ticking(1.0))


def test_a_missing_kernel_is_recorded_and_not_warned_of():
    def slow():
        warnings.warn("no cpu kernel runs pack for int8 on these tensors", stacklevel=1)

    mine = Contestant("mine", "ours", slow)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with mine.quiet():
            mine.call()
        with pytest.raises(UserWarning, match="no cpu kernel runs"):
            mine.call()


def test_the_best_of_some():
    times = {n: Timing(s, s, 1, 1) for n, s in (("copy: a", 3.0), ("copy: b", 2.0), ("c", 1.0))}
    assert best(times, "copy: ") == 2.0
    assert best(times, "") == 1.0
