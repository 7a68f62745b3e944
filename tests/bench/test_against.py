# SPDX-License-Identifier: BSD-3-Clause
"""A run against an earlier one: what is slower, by its ceiling, and what cannot be compared."""

import pytest

from blockscale.bench.against import changes, check_tolerance, regressions, verdict


def line(name, kind, seconds):
    return {"name": name, "kind": kind, "seconds": seconds}


def run(*cases, device="cpu"):
    named = [{"name": name, "contestants": list(lines)} for name, *lines in cases]
    return {"settings": {"device": device}, "cases": named}


def test_a_slower_machine_is_no_regression():
    """Everything takes twice as long, the copy too: the ratio to it is the same."""
    case = ("quantize/a", line("blockscale", "ours", 2.0), line("copy", "ceiling", 1.0))
    slow = ("quantize/a", line("blockscale", "ours", 4.0), line("copy", "ceiling", 2.0))
    [change] = changes(run(case), run(slow))
    assert (change.ratio, change.relative) == (1.0, True)
    assert verdict([change], 1.1) == ""


def test_the_best_ceiling_counts_and_peers_do_not():
    before = run(("c", line("o", "ours", 3.0), line("x", "ceiling", 2.0), line("y", "ceiling", 1.0),
                  line("p", "peer", 0.1)))  # fmt: skip
    now = run(("c", line("o", "ours", 3.0), line("x", "ceiling", 1.0), line("y", "ceiling", 2.0),
               line("p", "peer", 9.0)))  # fmt: skip
    [change] = changes(before, now)
    assert (change.before, change.now) == (3.0, 3.0)


def test_what_is_slower_is_named_worst_first():
    before = run(*((name, line("o", "ours", 1.0)) for name in "abc"))
    now = run(("a", line("o", "ours", 1.05)), ("b", line("o", "ours", 3.0)),
              ("c", line("o", "ours", 1.2)), ("d", line("o", "ours", 9.0)))  # fmt: skip
    found = changes(before, now)
    assert [change.case for change in found] == ["b", "c", "a"]
    said = verdict(found, 1.1)
    assert said.startswith("2 of 3 are slower than 1.1 times")
    assert "o of b: 3.00 times" in said
    table = regressions(found, 1.1)
    assert [row[-1] for row in table.rows] == ["✗ slower", "✗ slower", ""]
    assert verdict(found, 3.0) == ""  # equal to the tolerance is not beyond it


def test_runs_that_say_nothing_of_each_other_are_refused():
    one = run(("a", line("o", "ours", 1.0)))
    with pytest.raises(ValueError, match="none of these cases"):
        changes(one, run(("b", line("o", "ours", 1.0))))
    with pytest.raises(
        ValueError,
        match="earlier run was measured on cpu, this one on cuda: compare runs of one device",
    ):
        changes(one, run(("a", line("o", "ours", 1.0)), device="cuda"))


@pytest.mark.parametrize("tolerance", [0.0, -1.0, float("nan")])
def test_a_tolerance_is_above_zero(tolerance):
    with pytest.raises(ValueError, match="the tolerance must be > 0"):
        check_tolerance(tolerance)
