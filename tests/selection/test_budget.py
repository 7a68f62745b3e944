# SPDX-License-Identifier: BSD-3-Clause
"""Budgets by name."""

import pytest

from blockscale.selection.budget import Budget


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (4.5, ("bits", 4.5)),
        (6, ("bits", 6.0)),
        ("4.5", ("bits", 4.5)),
        ({"size": 2e7}, ("size", 2e7)),
        ("size=20MB", ("size", 2e7)),
        ("size = 3 MiB", ("size", 3 * 2.0**20)),
        ("size=1000", ("size", 1000.0)),
        ("latency=5ms", ("latency", 0.005)),
        ("latency=2", ("latency", 2.0)),
        ("quality=0.99", ("quality", 0.99)),
        (Budget("size", 5.0), ("size", 5.0)),
    ],
)
def test_what_is_read(given, expected):
    found = Budget.read(given)
    assert (found.name, found.value) == expected
    assert Budget.read(str(found)) == found


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("many", "'many' is no budget: give bits a weight"),
        ("speed=3", "'speed=3' is no budget"),
        ("size=3.3.3", "is no budget"),
        ("size=4 parsecs", "unknown unit 'parsecs' of a size; choose from B, kB, MB"),
        ("latency=4MB", "unknown unit 'MB' of a latency; choose from s, ms, us"),
        (0, "above 0 and finite, not bits=0"),
        (-2.0, "above 0"),
        (float("inf"), "finite"),
        (True, "is no budget"),
        (None, "is no budget"),
        ({"size": "20MB"}, "is no budget"),
        ({"size": 1.0, "bits": 2.0}, "a budget is one bound, found 2"),
    ],
)
def test_what_is_no_budget(given, told):
    with pytest.raises(ValueError, match=told):
        Budget.read(given)
