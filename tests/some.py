"""Some cases in the fast tests, all of them in the slow ones."""

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest


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
