"""Some cases in the fast tests, the others in the slow ones.

`crossed` makes the list of cases; `@pytest.mark.some(N)` is for tests whose cases come from several
places (decorators above one another, fixtures), and for long lists.
"""

from collections import Counter
from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest

GOLDEN = (5**0.5 - 1) / 2


def crossed(one_in: int, *lists: Iterable[Any]) -> list[Any]:
    """Every combination as pytest parameters, of which one in so many is fast.

    Along each list the fast ones take turns, so that each value of each list is in one at least if
    the others are as long as `one_in`.
    """
    placed = [list(enumerate(values)) for values in lists]
    return [
        pytest.param(*(value for _, value in each),
                     marks=() if sum(i for i, _ in each) % one_in == 0 else pytest.mark.slow)
        for each in product(*placed)
    ]  # fmt: skip


def mark_slow(items: Iterable[pytest.Item]) -> None:
    """Of each test that is marked `some(N)`, one case in N stays fast, the first one among them.

    Multiples of the golden ratio lie evenly in [0, 1) and have no period: no value of a list that
    goes around within the cases is left out each time.
    """
    seen: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("some")
        if mark is None or item.get_closest_marker("slow"):
            continue
        name = item.nodeid.partition("[")[0]
        if seen[name] * GOLDEN % 1 >= 1 / mark.args[0]:
            item.add_marker(pytest.mark.slow)
        seen[name] += 1
