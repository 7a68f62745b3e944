# SPDX-License-Identifier: BSD-3-Clause
"""Some cases in the fast tests, the others in the slow ones; of grids, a part that meets all pairs.

`crossed` makes the list of cases: every combination of one or two lists, and of more lists so many
that each value of each meets each of the others. `@pytest.mark.pairs` chooses likewise among the
cases that decorators above one another and fixtures make, and `@pytest.mark.some(N)` which of them
are fast. With --every-case all are run.

The first fault of most code is seen by one value, or by two together (Kuhn et al., "Software fault
interactions and implications for software testing", 2004); what takes three is for the random
combinations that are chosen, too, and for `make attack`.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any

import pytest

GOLDEN = (5**0.5 - 1) / 2
MORE = 0.25  # random combinations beside those that meet all pairs


def crossed(one_in: int, *lists: Iterable[Any]) -> list[Any]:
    """Combinations as pytest parameters, of which about one in so many is fast.

    All of them where the lists are one or two, else `covering` ones. Along each list the fast ones
    take turns, so that each value of each list is in one if the others are as long as `one_in`; of
    three lists and more it always is.
    """
    values = [list(each) for each in lists]
    chosen = list(product(*(range(len(each)) for each in values)))
    if len(values) > 2:
        chosen = covering(chosen)
    fast = {case for case in chosen if sum(case) % one_in == 0}
    seen = {each for case in fast for each in enumerate(case)}
    for case in chosen if len(values) > 2 else ():
        if not seen.issuperset(enumerate(case)):
            fast.add(case)
            seen.update(enumerate(case))
    return [
        pytest.param(*(each[i] for each, i in zip(values, case, strict=True)),
                     marks=() if case in fast else pytest.mark.slow)
        for case in chosen
    ]  # fmt: skip


def covering(cases: Sequence[tuple[int, ...]], more: float = MORE) -> list[tuple[int, ...]]:
    """Those of the cases, places in some lists, in which each two places of two lists meet that do
    so in any.

    About as many as the longest list has pairs with the next, and `more` of their number, drawn
    from the others: always the same ones, in the order of the cases.
    """
    order = sorted(cases)
    random.Random(repr(order[-1:])).shuffle(order)
    pairs = {case: set(combinations(enumerate(case), 2)) for case in order}
    left = set().union(*pairs.values())
    found: set[tuple[int, ...]] = set()
    for enough in range(max(map(len, pairs.values()), default=0), 0, -1):  # the best ones first
        for case in order:
            if len(pairs[case] & left) >= enough:
                found.add(case)
                left -= pairs[case]
    others = [case for case in order if case not in found]
    found.update(others[: int(more * len(found))])
    return [case for case in cases if case in found]


def beyond_pairs(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Of each test that is marked `pairs`, the cases that bring no new pair of parameters."""
    tests: dict[str, dict[tuple[int, ...], pytest.Item]] = defaultdict(dict)
    numbers: dict[tuple[str, int], int] = {}  # of the values: one object in all its cases
    for item in items:
        if item.get_closest_marker("pairs"):
            values: dict[str, Any] = item.callspec.params  # type: ignore[attr-defined]
            keys = [(name, id(values[name])) for name in sorted(values)]
            place = tuple(numbers.setdefault(key, len(numbers)) for key in keys)
            tests[item.nodeid.partition("[")[0]][place] = item
    kept = {test: set(covering(list(cases))) for test, cases in tests.items()}
    return [item for test, cases in tests.items() for place, item in cases.items()
            if place not in kept[test]]  # fmt: skip


def left_out_by(expression: str) -> set[str]:
    """The marks with which `-m` leaves a test out whatever its others are: of "not a and b"."""
    if " or " in f" {expression} " or "(" in expression:
        return set()
    parts = [part.strip() for part in expression.split(" and ")]
    return {part.removeprefix("not ").strip() for part in parts if part.startswith("not ")}


def is_left_out(collector: pytest.Collector, test: object, marks: set[str]) -> bool:
    """Whether a function, or the module or class that it lies in, has one of the marks."""
    own = {mark.name for mark in getattr(test, "pytestmark", ())}
    return bool(marks & own) or any(mark.name in marks for mark in collector.iter_markers())


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
