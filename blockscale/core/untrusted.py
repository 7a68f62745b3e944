# SPDX-License-Identifier: BSD-3-Clause
"""Files that others wrote: names, sizes and JSON are checked before they are used."""

import json
import math
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

# Names from files as people see them: on one line, without anything that a terminal obeys.

LONGEST = 4096  # characters of a tensor's name; longer ones are refused
SHOWN = 200  # characters of a name that are shown; a name of a real tensor has fewer than 120
TEXT = 1000  # characters of a reason or a note, which may have names in it
QUOTED = 60  # characters of a text that an error repeats: no more than a line


def shown(name: object, longest: int = SHOWN) -> str:
    """A name as it can be printed anywhere; one of printable characters and usual length as it is.

    Line ends, escape sequences, marks that turn the direction of text, and whatever else is not
    printable (Unicode's "Other" and "Separator", but for the space) become Python's escapes, such
    as \\x1b and \\u202e. The middle of a long name is left out.
    """
    text = name if isinstance(name, str) else str(name)
    if len(text) <= longest and text.isprintable():
        return text
    if len(text) > longest:
        rest = longest // 2
        return f"{_escape(text[:rest])} … ({len(text):,} characters) … {_escape(text[-rest:])}"
    return _escape(text)


def shown_lines(text: str) -> str:
    """A message of our own, which may have several lines of any length, likewise."""
    return text if text.isprintable() else "\n".join(map(_escape, text.split("\n")))


def quote(value: object) -> str:
    """What an error repeats of a text, in quotes, or of another value: no more than a line."""
    if not isinstance(value, str):
        return shown(repr(value), QUOTED)
    if len(value) > QUOTED:
        return f"{value[:QUOTED]!a}… ({len(value):,} characters)"
    return repr(value) if value.isprintable() else ascii(value)


def kind_of(value: object) -> str:
    """A value's type as errors tell of it: "an int", "a list", "an LSTM", "None"."""
    return "None" if value is None else with_article(type(value).__name__)


def with_article(noun: str) -> str:
    """A noun after "a" or "an", as it is spoken: letters that are spelled out begin as they do."""
    by_letters = noun[:2].isupper() or len(noun) == 1
    vowels = "AEFHILMNORSXaefhilmnorsx" if by_letters else "AEIOaeio"
    return f"{'an' if noun[:1] in vowels else 'a'} {noun}"


def _escape(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )


# Files that may be anything: only regular ones are read, and only so much of them.
#
# A pipe or a device in the place of a file would keep a reader waiting or fill the memory.

_MESSAGE = 4000  # characters of an error, with all the names in it


class FileError(ValueError):
    """A file that cannot be used, and why; names in its message are printable."""

    def __init__(self, message: object = ""):
        super().__init__(shown(message, _MESSAGE))


def open_regular(path: str | Path) -> int:
    """A file descriptor to read a regular file from. Links to one are followed.

    Raises FileError for a pipe, a device, a folder and a file that is not there, at once, and
    OSError where the system does not let it be read.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
    try:
        file = os.open(path, flags | getattr(os, "O_BINARY", 0))
    except (FileNotFoundError, NotADirectoryError):
        raise FileError(f"{path} does not exist") from None
    except ValueError as error:  # a name with a zero byte
        raise FileError(f"{path} is not a file name: {error}") from None
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise FileError(f"{path} is not a regular file: put a copy of the file there")
    except BaseException:
        os.close(file)
        raise
    return file


def read_regular(path: str | Path, most: int) -> bytes:
    """All of a regular file of at most `most` bytes. Raises FileError for others."""
    with os.fdopen(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(most + 1) if size <= most else b""
    if size > most or len(data) > most:
        raise FileError(f"{path} has {max(size, len(data)):,} bytes, at most {most:,} are read")
    return data


# The one reader of JSON: bounded in size and depth, with errors that say whose text it was.
#
# Python's own reader takes more than JSON is (NaN, a key twice, half a character), and stops with
# RecursionError in a text of a thousand brackets.

LARGEST = 100_000_000  # bytes, as of a safetensors header: the index of a large model has a tenth
SETTINGS = 16_000_000  # bytes of a config, a recipe or a table of launch choices
DEEPEST = 64  # brackets inside of each other


def read_json(
    path: str | Path, *, most: int = SETTINGS, unique_keys: bool = True, finite: bool = True
) -> Any:
    """What a JSON file holds; the options are those of `parse_json`.

    Raises FileError for what is not a regular file of at most `most` bytes of JSON.
    """
    return parse_json(
        read_regular(path, most), path, most=most, unique_keys=unique_keys, finite=finite
    )


def parse_json(
    text: str | bytes,
    what: object,
    *,
    most: int = SETTINGS,
    unique_keys: bool = True,
    finite: bool = True,
    integer: Callable[[str], int] | None = None,
) -> Any:
    """What JSON text holds.

    what: names the text in errors
    unique_keys: refuse an object that has a key twice, of which readers take one or the other
    finite: refuse NaN, infinities and numbers that float64 cannot hold
    integer: what reads an integer, and may raise ValueError

    Raises FileError for text that is not JSON, too long or too deep.
    """
    if len(text) > most:
        raise FileError(f"{what} has {len(text):,} characters, at most {most:,} are read")
    try:
        decoded = text.decode() if isinstance(text, bytes) else text
        data = json.loads(
            decoded,
            object_pairs_hook=_refuse_twins if unique_keys else None,
            parse_constant=_refuse if finite else None,
            parse_float=_finite if finite else None,
            parse_int=integer,
        )
        _check_depth(data)
    except RecursionError:
        raise FileError(f"{what} is nested too deeply: at most {DEEPEST} levels") from None
    except ValueError as error:
        raise FileError(f"{what} is not JSON: {error}") from None
    return data


def json_object(value: Any, what: object) -> dict[str, Any]:
    """What was read, if it is an object. Raises FileError for anything else."""
    if not isinstance(value, dict):
        raise FileError(f"{what} holds {kind_of(value)}, expected a JSON object")
    return value


def set_aside(path: Path) -> Path:
    """Rename a damaged file, so that work goes on without it and nothing is lost: its new name."""
    for number in range(1, 1000):
        other = path.with_name(f"{path.name}.damaged{number}")
        if not os.path.lexists(other):
            path.rename(other)
            return other
    raise FileError(
        f"{path} is damaged and cannot be set aside, as {path.name}.damaged1 to .damaged999 exist: "
        "delete those"
    )


def _refuse_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    by_name = dict(pairs)
    if len(by_name) < len(pairs):
        keys: set[str] = set()
        twice = next(key for key, _ in pairs if key in keys or keys.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {quote(twice)} appears twice")
    return by_name


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{quote(text)} is too large")
    return number


def _check_depth(value: Any) -> None:
    """Raise ValueError for what is too deep, and for half a character, which no file can name."""
    level: list[Any] = [value]  # all that is inside of as many brackets
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
