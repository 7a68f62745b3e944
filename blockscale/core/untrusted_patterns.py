# SPDX-License-Identifier: BSD-3-Clause
"""Regular expressions of strangers, matched in bounded time.

Python's `re` tries one way after another: `(a+)+b` against thirty letters takes minutes. Here all
ways are tried at once: the positions of a name that an expression can have reached are the bits of
one integer, and each part of the expression moves them (Thompson, Regular Expression Search
Algorithm, CACM 1968). A match is one of the whole name, as `re.fullmatch` finds it, also with
look-ahead and look-behind. Four things no set of positions can tell, and they are refused:
references to a group, conditions on one, atomic groups and possessive repeats.
"""

import math
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from re import _constants as kinds  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

from blockscale.core.untrusted import LONGEST as NAME
from blockscale.core.untrusted import quote

LONGEST = 10_000  # characters of a pattern
STEPS = 200_000  # of one match: a tenth of a second; usual patterns take less than a hundred
_WAYS = 50_000  # of `re`, a hundredth of a second: two `.*` and a choice of three words
_FLAGS = re.IGNORECASE | re.ASCII | re.DOTALL | re.MULTILINE | re.VERBOSE | re.UNICODE
_TYPES = re.ASCII | re.UNICODE
_CHARACTERS = (kinds.LITERAL, kinds.NOT_LITERAL, kinds.ANY, kinds.IN)
_CATEGORIES = {
    kinds.CATEGORY_DIGIT: r"\d", kinds.CATEGORY_NOT_DIGIT: r"\D", kinds.CATEGORY_SPACE: r"\s",
    kinds.CATEGORY_NOT_SPACE: r"\S", kinds.CATEGORY_WORD: r"\w", kinds.CATEGORY_NOT_WORD: r"\W",
}  # fmt: skip
_PLACES = {
    kinds.AT_BEGINNING: "^", kinds.AT_BEGINNING_STRING: r"\A", kinds.AT_END: "$",
    kinds.AT_END_STRING: r"\Z", kinds.AT_BOUNDARY: r"\b", kinds.AT_NON_BOUNDARY: r"\B",
}  # fmt: skip
Move = Callable[["_Name", int], int]  # the positions before a part -> those after it


class _Name:
    """A name that is being matched, and what is known of its positions."""

    def __init__(self, text: str):
        self.text, self.steps = text, 0
        self._masks: dict[tuple[re.Pattern[str], bool], int] = {}

    def where(self, one: re.Pattern[str], place: bool) -> int:
        """The positions whose character matches `one`; for a place, those that it is at."""
        if (one, place) not in self._masks:
            if place:
                results = [i for i in range(len(self.text) + 1) if one.match(self.text, i)]
            else:
                results = [each.start() for each in one.finditer(self.text)]
            self._masks[one, place] = sum(1 << i for i in results)
        return self._masks[one, place]

    def count(self) -> None:
        """One step more. Raises ValueError where they are too many."""
        self.steps += 1
        if self.steps > STEPS:
            raise ValueError(f"more than {STEPS:,} steps against {quote(self.text)}")


class Compiled(NamedTuple):
    """What matches a pattern: `regex` where it is there and names are short."""

    move: Move
    regex: re.Pattern[str] | None


@lru_cache(maxsize=1000)
def compiled(pattern: str) -> Compiled:
    """What matches a pattern. Raises ValueError for one that is none, or cannot be bounded."""
    if len(pattern) > LONGEST:
        raise ValueError(
            f"pattern {quote('re:' + pattern)} is too long: at most {LONGEST:,} characters"
        )
    try:
        tree = parser.parse(pattern)
        move = _sequence(tree, tree.state.flags & _FLAGS)
        return Compiled(move, re.compile(pattern) if ways(tree) <= _WAYS else None)
    except (re.error, OverflowError) as error:
        text = f"pattern {quote('re:' + pattern)} is not a regular expression: {error}"
        raise ValueError(text) from None
    except RecursionError:
        raise ValueError(f"pattern {quote('re:' + pattern)} has too many nested groups") from None
    except ValueError as error:
        raise ValueError(f"pattern {quote('re:' + pattern)}: {error}") from None


@lru_cache(maxsize=100_000)
def full_match(pattern: str, name: str) -> bool:
    """Whether a regular expression matches all of a name, as `re.fullmatch` does.

    Raises ValueError for what `compiled` refuses, and for a match that takes too many steps.
    """
    move, regex = compiled(pattern)
    if regex is not None and len(name) <= SHORT:
        return regex.fullmatch(name) is not None
    name_of_pattern = quote(f"re:{pattern}")
    if len(name) > NAME:
        raise ValueError(f"{quote(name)} is too long for patterns: at most {NAME:,} characters")
    try:
        return bool(move(_Name(name), 1) >> len(name) & 1)
    except RecursionError:
        raise ValueError(f"pattern {name_of_pattern} has too many nested groups") from None
    except ValueError as error:
        raise ValueError(
            f"pattern {name_of_pattern} takes {error}: write it without nested repeats"
        ) from None


def _sequence(parts: Iterable[tuple[Any, Any]], flags: int) -> Move:
    moves = [_part(kind, value, flags) for kind, value in parts]

    def move(name: _Name, at: int) -> int:
        for each in moves:
            if not at:
                return 0
            name.count()
            at = each(name, at)
        return at

    return move


def _part(kind: Any, value: Any, flags: int) -> Move:
    """What one part of Python's parse tree does to positions. Raises ValueError if unbounded."""
    if kind in _CHARACTERS:
        one = _character(kind, value, flags)
        return lambda name, at: (at & name.where(one, False)) << 1
    if kind is kinds.AT:
        place = re.compile(_PLACES[value], flags)
        return lambda name, at: at & name.where(place, True)
    if kind is kinds.SUBPATTERN:
        _, on, off, inside = value
        if on & _TYPES:
            flags &= ~_TYPES
        return _sequence(inside, (flags | on) & ~off & _FLAGS)
    if kind is kinds.BRANCH:
        return _any_of([_sequence(each, flags) for each in value[1]])
    if kind in (kinds.MAX_REPEAT, kinds.MIN_REPEAT):
        least, most, inside = value
        return _repeat(least, most, inside, flags)
    if kind in (kinds.ASSERT, kinds.ASSERT_NOT):
        return _look(value, kind is kinds.ASSERT, flags)
    if kind is kinds.FAILURE:
        return _any_of([])
    setting = {
        kinds.GROUPREF: "a reference to a group", kinds.GROUPREF_EXISTS: "a condition",
        kinds.ATOMIC_GROUP: "an atomic group", kinds.POSSESSIVE_REPEAT: "a possessive repeat",
    }.get(kind, str(kind))  # fmt: skip
    raise ValueError(f"it has {setting}, which could make matching take forever: write it without")


def _character(kind: Any, value: Any, flags: int) -> re.Pattern[str]:
    """A part that is one character, as an expression by itself."""
    if kind is kinds.ANY:
        source = "."
    elif kind is kinds.IN:
        inside = "".join(_member(*each) for each in value)
        source = f"[{inside}]"
    else:
        source = f"[{'^' * (kind is kinds.NOT_LITERAL)}{_escape(value)}]"
    return re.compile(source, flags & ~re.VERBOSE)


def _member(kind: Any, value: Any) -> str:
    if kind is kinds.NEGATE:
        return "^"
    if kind is kinds.CATEGORY:
        return _CATEGORIES[value]
    return _escape(value) if kind is kinds.LITERAL else "-".join(map(_escape, value))


def _escape(code: int) -> str:
    return f"\\U{code:08x}"


def _any_of(moves: list[Move]) -> Move:
    def move(name: _Name, at: int) -> int:
        after = 0
        for each in moves:
            name.count()
            after |= each(name, at)
        return after

    return move


def _repeat(least: int, most: int, parts: Any, flags: int) -> Move:
    inside, endless = _sequence(parts, flags), most == kinds.MAXREPEAT
    more = _run(parts[0], flags) if endless and len(parts) == 1 else None

    def move(name: _Name, at: int) -> int:
        for _ in range(least):
            name.count()
            before, at = at, inside(name, at)
            if at in (0, before):  # as it will be after any more
                break
        if more is not None:
            return more(name, at)
        positions, count = at, least
        while at and (endless or count < most):
            name.count()
            at, count = inside(name, at) & ~positions, count + 1
            positions |= at
        return positions

    return move


def _run(part: tuple[Any, Any], flags: int) -> Move | None:
    """Any number of one character, such as `.*`, in one step; None for other parts."""
    kind, value = part
    if kind not in _CHARACTERS:
        return None
    one = _character(kind, value, flags)

    def move(name: _Name, at: int) -> int:
        every = name.where(one, False)
        return at | ((every + (at & every)) ^ every)  # a carry runs from each position to the end

    return move


def _look(value: tuple[int, Any], is_set: bool, flags: int) -> Move:
    """Look-ahead and look-behind: positions stay where the inside matches beside them, or not."""
    direction, inside = value
    behind = inside.getwidth()[0] if direction < 0 else 0
    look = _sequence(inside, flags)

    def move(name: _Name, at: int) -> int:
        after = 0
        for place in range(behind, len(name.text) + 1):
            if at >> place & 1:
                name.count()
                result = look(name, 1 << (place - behind))
                matches = result >> place & 1 if direction < 0 else result
                after |= (bool(matches) is is_set) << place
        before_any = (1 << behind) - 1  # places with too little before them: nothing matches
        return after if is_set else after | (at & before_any)

    return move


# How many ways Python's matcher may try: where they are few, it is taken as it is.


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
