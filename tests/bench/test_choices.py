# SPDX-License-Identifier: BSD-3-Clause
"""Questions about the CPU's kernels: bounds between two ways, and which questions there are."""

import itertools
import math

import pytest

from blockscale.bench.tune import QUESTIONS, Bound, best_cut, gain, questions_for
from blockscale.kernels.cpu import _native


@pytest.mark.parametrize("below", list(itertools.product((1.0, 2.0, 4.0), repeat=3)))
def test_the_best_bound_is_that_of_every_one_tried(below: tuple[float, ...]) -> None:
    above = (2.0, 2.0, 2.0)
    products = [math.prod((*below[:cut], *above[cut:])) for cut in range(4)]
    best = best_cut(below, above)
    assert products[best] == min(products)
    for other in range(4):
        share = (products[best] / products[other]) ** (1 / 3)
        assert gain(below, above, best, other) == pytest.approx(share)


def test_what_a_bound_may_become() -> None:
    def nothing(size: int) -> list:
        return []

    assert Bound("", (4, 8), nothing, above=True).cuts() == [4, 8, 16]  # from there on
    assert Bound("", (4, 8), nothing, above=False).cuts() == [0, 4, 8]  # up to there


def test_every_choice_of_the_library_has_its_question() -> None:
    assert [each.name for each in QUESTIONS] == list(_native.tuning_bounds())
    assert {each.name for each in questions_for("amx")} == set(_native.tuning_bounds())
    plain = {each.name for each in questions_for("avx2")}
    assert (
        "vector_rows" not in plain and "few_of_bytes_float" not in plain and "rows_bytes" in plain
    )


def test_candidates_are_within_the_librarys_bounds() -> None:
    for each in QUESTIONS:
        _, least, most = _native.tuning_bounds()[each.name]
        unit = 1024 if each.name == "weight_bytes" else 1
        values = [n * unit for n in each.cuts()] if isinstance(each, Bound) else each.candidates
        assert all(least <= value <= most for value in values), each.name
