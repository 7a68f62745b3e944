"""How many ways Python's matcher may try: where they are few, it is taken as it is."""

import math
from collections.abc import Iterable
from re import _constants as kinds  # type: ignore[attr-defined]
from typing import Any

SHORT = 128  # characters of a name


def ways(parts: Iterable[tuple[Any, Any]]) -> float:
    """How many ways `re` may try, one after another, against a short name, at most."""
    count = 1.0
    for kind, value in parts:
        if kind is kinds.SUBPATTERN:
            count *= ways(value[3])
        elif kind is kinds.BRANCH:
            count *= sum(map(ways, value[1]))
        elif kind in (kinds.ASSERT, kinds.ASSERT_NOT):
            count *= ways(value[1])
        elif kind in (kinds.MAX_REPEAT, kinds.MIN_REPEAT):
            least, most, inside = value
            inner = ways(inside)
            if inner > 1 and most > 1:
                return math.inf
            count *= inner + min(int(most) - int(least), SHORT)
    return count
