# SPDX-License-Identifier: BSD-3-Clause
"""Each two values of two lists meet in a case, and each value is in a fast one."""

from itertools import combinations, product
from types import SimpleNamespace

import pytest

from tests.support.some import choose, covering, crossed, is_left_out, left_out_by


def grid(*sizes: int) -> list[tuple[int, ...]]:
    return list(product(*map(range, sizes)))


@pytest.mark.parametrize("sizes", [(2, 2, 2), (5, 3, 2, 7), (10, 12, 6, 3), (1, 1, 9), (4, 0, 2)])
def test_each_two_meet(sizes: tuple[int, ...]) -> None:
    cases = covering(grid(*sizes))
    assert cases == [case for case in grid(*sizes) if case in set(cases)]
    for a, b in combinations(range(len(sizes)), 2):
        if 0 not in sizes:
            assert len({(case[a], case[b]) for case in cases}) == sizes[a] * sizes[b]
    largest, second = sorted(sizes)[:-3:-1]
    assert len(cases) <= 2 * largest * second
    assert cases == covering(grid(*sizes))


def test_others_are_drawn_beside_them() -> None:
    cases = grid(6, 5, 4, 3)
    assert len(covering(cases, more=1)) == 2 * len(covering(cases, more=0))
    assert covering(grid(2, 2, 2), more=99) == grid(2, 2, 2)


def test_what_never_meets_is_not_missed() -> None:
    cases = [(i, i, j, k) for i in range(6) for j in range(4) for k in range(3)]
    found = covering(cases, more=0)
    assert {(a, c) for a, _, c, _ in found} == {(i, j) for i in range(6) for j in range(4)}
    assert 24 <= len(found) <= 36


def test_one_and_two_lists_are_whole() -> None:
    assert [case.values for case in crossed(2, "abc")] == [("a",), ("b",), ("c",)]
    pairs = crossed(2, "abc", (1, 2))
    assert [case.values for case in pairs] == [(x, n) for x in "abc" for n in (1, 2)]
    assert [not case.marks for case in pairs] == [True, False, False, True, True, False]


def test_each_value_is_in_a_fast_case() -> None:
    lists = range(12), "abcd", "xyz", (False, True)
    fast = [case.values for case in crossed(3, *lists) if not case.marks]
    for place, values in enumerate(lists):
        assert {case[place] for case in fast} == set(values)


VALUES = [object() for _ in range(9)]


class Cases:
    """As much of pytest's Metafunc as is asked: the cases of a function with marks."""

    def __init__(self, places: list[tuple[int, ...]], *marks: pytest.MarkDecorator):
        self.definition = self
        self._marks = {mark.name: mark for mark in marks}
        self._calls = [self.case(place) for place in places]

    def case(self, place: tuple[int, ...]) -> SimpleNamespace:
        params = dict(zip("abcd", [VALUES[i] for i in place], strict=False))
        return SimpleNamespace(place=place, params=params, marks=[])

    def get_closest_marker(self, name: str) -> pytest.MarkDecorator | None:
        return self._marks.get(name)

    def chosen(self, every_case: bool = False, without: str = "") -> list[tuple[int, ...]]:
        choose(self, every_case, {without})  # type: ignore[arg-type]
        return [case.place for case in self._calls]


def test_pairs_of_decorators_and_fixtures() -> None:
    """Among the cases that there are; tests without the mark stay whole."""
    places = [(i, j, j, k) for i, j, k in grid(6, 3, 3)]
    kept = Cases(places, pytest.mark.pairs).chosen()
    assert 18 <= len(kept) <= 32
    for a, b in ((0, 1), (0, 3)):
        assert len({(place[a], place[b]) for place in kept}) == 18
    assert Cases(places, pytest.mark.pairs).chosen(every_case=True) == places
    assert Cases(grid(4, 4, 4)).chosen() == grid(4, 4, 4)
    assert Cases([(3, 2, 1)], pytest.mark.pairs).chosen() == [(3, 2, 1)]


def test_pairs_of_what_a_value_is_made_of() -> None:
    """Two aspects of a value of a, which both meet those of b; of c each value is in a case."""
    places = grid(9, 3, 7)
    number = {id(value): i for i, value in enumerate(VALUES)}
    mark = pytest.mark.pairs(
        a=lambda value: (number[id(value)] // 3, min(number[id(value)], 1)), c=lambda value: ()
    )
    kept = Cases(places, mark).chosen()
    assert {(a // 3, b) for a, b, _ in kept} == set(grid(3, 3))
    assert {(min(a, 1), b) for a, b, _ in kept} == set(grid(2, 3))
    for place, count in enumerate((9, 3, 7)):
        assert {case[place] for case in kept} == set(range(count))
    assert len(kept) <= 2 * 12 < len(Cases(places, pytest.mark.pairs).chosen())
    assert Cases(places, mark).chosen(every_case=True) == places
    assert kept == Cases(places, mark).chosen()


def test_some_cases_are_fast() -> None:
    """About one in four, the first among them; the others are slow, or left out."""
    places = grid(8, 5)
    test = Cases(places, pytest.mark.some(4))
    assert test.chosen() == places
    fast = [case.place for case in test._calls if not case.marks]
    assert fast[0] == (0, 0) and 9 <= len(fast) <= 12
    assert Cases(places, pytest.mark.some(4)).chosen(without="slow") == fast
    assert Cases(places, pytest.mark.some(4)).chosen(every_case=True, without="slow") == places
    assert Cases(places, pytest.mark.some(4), pytest.mark.slow).chosen(without="gpu") == places


def test_cases_of_a_mark_are_left_out() -> None:
    """Where all have it one stays, for pytest itself to leave out."""
    for slow, left in (({1, 2}, [(0,), (3,)]), ({0, 1, 2, 3}, [(0,)]), (set(), grid(4))):
        test = Cases(grid(4))
        for case in test._calls:
            case.marks += [pytest.mark.slow.mark] * (case.place[0] in slow)
        assert test.chosen(without="slow") == left
    assert Cases([]).chosen(without="slow") == []


def test_marks_that_leave_a_test_out() -> None:
    assert left_out_by("not slow and not gpu and not clients") == {"slow", "gpu", "clients"}
    assert left_out_by("not slow") == {"slow"} and left_out_by("gpu and not slow") == {"slow"}
    for all_may_run in ("", "slow", "slow or not slow", "not (slow and gpu)"):
        assert left_out_by(all_may_run) == set()


def test_a_function_is_left_out_by_its_own_mark_and_its_modules() -> None:
    fast, slow = SimpleNamespace(), SimpleNamespace(pytestmark=[pytest.mark.slow.mark])
    cases = SimpleNamespace(pytestmark=[pytest.mark.parametrize("a", [1]).mark])
    plain = SimpleNamespace(iter_markers=list)
    marked = SimpleNamespace(iter_markers=lambda: [pytest.mark.gpu.mark])
    found = [is_left_out(plain, each, {"slow", "gpu"}) for each in (fast, slow, cases)]
    assert found == [False, True, False]
    assert is_left_out(marked, fast, {"slow", "gpu"}) and not is_left_out(marked, fast, {"slow"})
    assert not is_left_out(plain, slow, set())
