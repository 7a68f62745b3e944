# SPDX-License-Identifier: BSD-3-Clause
"""Some cases in the fast tests, the others in the slow ones; of grids, a part that meets all pairs.

`crossed` makes the list of cases: every combination of one or two lists, and of more lists so many
that each value of each meets each of the others. `@pytest.mark.pairs` chooses likewise among the
cases that decorators above one another and fixtures make (`pairs(fmt=aspects)`: not values of fmt
meet, but what `aspects` finds in them), and `@pytest.mark.some(N)` which of them are fast. With
--every-case all are run.

The first fault of most code is seen by one value, or by two together (Kuhn et al., "Software fault
interactions and implications for software testing", 2004); what takes three is for the random
combinations that are chosen, too, and for `make attack`.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
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


def choose(metafunc: pytest.Metafunc, every_case: bool, without: set[str]) -> None:
    """Of a test's cases those that are wanted, before pytest makes items of them: half are slow.

    every_case: also those that `pairs` and `some` leave out; without: marks that none may have.
    """
    cases, test = metafunc._calls, metafunc.definition
    pairs = test.get_closest_marker("pairs")
    if not every_case and pairs:
        cases = meeting(cases, pairs.kwargs)
    some = test.get_closest_marker("some")
    if some and not every_case and not test.get_closest_marker("slow"):
        mark_slow(cases, some.args[0])
    kept = [case for case in cases if not any(mark.name in without for mark in case.marks)]
    metafunc._calls = kept or cases[:1]  # none at all would be a test without parameters


def meeting(
    cases: Sequence[Any], aspects: Mapping[str, Callable[[Any], Iterable[Any]]]
) -> list[Any]:
    """Those of a test's cases in which two parameters' values meet for the first time.

    aspects: of these parameters, by their names, what it is of a value that has to meet in its
        place, perhaps nothing; each value is in a case, too
    """
    numbers: dict[tuple[Any, ...], int] = {}  # of the values: one object in all its cases

    def place(case: Any) -> tuple[int, ...]:
        keys: list[tuple[Any, ...]] = []
        for name, value in sorted(case.params.items()):
            parts = aspects[name](value) if name in aspects else [id(value)]
            keys += [(name, *each) for each in enumerate(parts)]
        return tuple(numbers.setdefault(key, len(numbers)) for key in keys)

    places = _by(place, cases)
    kept = _in_turn([places[each] for each in covering(list(places))])
    for name in aspects:
        of_value = _by(lambda case, name=name: id(case.params[name]), cases).values()
        kept |= _in_turn([each for each in of_value if kept.isdisjoint(map(id, each))])
    return [case for case in cases if id(case) in kept]


def _by(key: Callable[[Any], Any], cases: Iterable[Any]) -> dict[Any, list[Any]]:
    by_key: dict[Any, list[Any]] = {}
    for case in cases:
        by_key.setdefault(key(case), []).append(case)
    return by_key


def _in_turn(groups: Sequence[Sequence[Any]]) -> set[int]:
    """The id of a case of each group, always another one of those that it has."""
    return {id(each[int(number * GOLDEN % 1 * len(each))]) for number, each in enumerate(groups)}


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


def mark_slow(cases: Iterable[Any], one_in: int) -> None:
    """Of a test's cases one in so many stays fast, the first one among them.

    Multiples of the golden ratio lie evenly in [0, 1) and have no period: no value of a list that
    goes around within the cases is left out each time.
    """
    number = 0
    for case in cases:
        if all(mark.name != "slow" for mark in case.marks):
            if number * GOLDEN % 1 >= 1 / one_in:
                case.marks.append(pytest.mark.slow.mark)
            number += 1
