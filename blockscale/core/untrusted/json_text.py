# SPDX-License-Identifier: BSD-3-Clause
"""The one reader of JSON: bounded in size and depth, with errors that say whose text it was.

Python's own reader takes more than JSON is (NaN, a key twice, half a character), and stops with
RecursionError in a text of a thousand brackets.
"""

import json
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

from blockscale.core.untrusted.files import FileError, read_regular
from blockscale.core.untrusted.names import quoted

LARGEST = 100_000_000  # bytes, as of a safetensors header: the index of a large model has a tenth
SETTINGS = 16_000_000  # bytes of a config, a recipe or a table of launch choices
DEEPEST = 64  # brackets inside of each other


def read_json(
    path: str | Path, *, most: int = SETTINGS, once: bool = True, finite: bool = True
) -> Any:
    """What a JSON file holds; the options are those of `parse_json`.

    Raises FileError for what is not a regular file of at most `most` bytes of JSON.
    """
    return parse_json(read_regular(path, most), path, most=most, once=once, finite=finite)


def parse_json(
    text: str | bytes,
    what: object,
    *,
    most: int = SETTINGS,
    once: bool = True,
    finite: bool = True,
    integer: Callable[[str], int] | None = None,
) -> Any:
    """What JSON text holds.

    what: names the text in errors
    once: refuse an object that has a key twice, of which readers take one or the other
    finite: refuse NaN, infinities and numbers that float64 cannot hold
    integer: what reads an integer, and may raise ValueError

    Raises FileError for text that is not JSON, too long or too deep.
    """
    if len(text) > most:
        raise FileError(f"{what} has {len(text):,} characters, at most {most:,} are read")
    try:
        decoded = text.decode() if isinstance(text, bytes) else text
        found = json.loads(
            decoded,
            object_pairs_hook=_once if once else None,
            parse_constant=_refuse if finite else None,
            parse_float=_finite if finite else None,
            parse_int=integer,
        )
        _check_depth(found)
    except RecursionError:
        raise FileError(f"{what} is nested too deeply: at most {DEEPEST} levels") from None
    except ValueError as error:
        raise FileError(f"{what} is not JSON: {error}") from None
    return found


def json_object(found: Any, what: object) -> dict[str, Any]:
    """What was read, if it is an object. Raises FileError for anything else."""
    if not isinstance(found, dict):
        raise FileError(f"{what} holds a {type(found).__name__}, expected a JSON object")
    return found


def set_aside(path: Path) -> Path:
    """Rename a damaged file, so that work goes on without it and nothing is lost: its new name."""
    for number in range(1, 1000):
        other = path.with_name(f"{path.name}.damaged{number}")
        if not os.path.lexists(other):
            path.rename(other)
            return other
    raise FileError(f"{path} is damaged, like a thousand before it: delete {path.name}.damaged*")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {quoted(twice)} appears twice")
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{quoted(text)} is too large")
    return number


def _check_depth(found: Any) -> None:
    """Raise ValueError for what is too deep, and for half a character, which no file can name."""
    level: list[Any] = [found]  # all that is inside of as many brackets
    for _ in range(DEEPEST + 1):
        inner = [each for each in level if isinstance(each, dict | list)]
        _check_text(each for each in level if isinstance(each, str))
        if not inner:
            return
        level = []
        for each in inner:
            if isinstance(each, dict):
                _check_text(each)
                level += each.values()
            else:
                level += each
    raise ValueError(f"it is nested too deeply: at most {DEEPEST} levels")


def _check_text(texts: Iterable[str]) -> None:
    for text in texts:
        if not text.isascii():
            text.encode()
