# SPDX-License-Identifier: BSD-3-Clause
"""Text to evaluate language models on: a file's, or what every Python has."""

import hashlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from blockscale.core.untrusted import read_regular

_LONGEST = 256_000_000  # bytes of a file
_PIECE = 1 << 16  # characters that are made tokens at one time


@dataclass(frozen=True)
class Text:
    """name: where it is from; digest: the first 16 hexadecimal digits of its SHA-256 as UTF-8."""

    name: str
    content: str

    @property
    def digest(self) -> str:
        """What tells it from another text of this name."""
        return hashlib.sha256(self.content.encode()).hexdigest()[:16]


def held_out(path: str | Path | None = None) -> Text:
    """A file's text; None: the help texts of Python's own `pydoc_data.topics`, in order of names.

    No data set is needed for that one, and every machine with this version of Python has the same:
    English about programming, with code. Models have seen some of it. Raises ValueError for a file
    that is empty, is no text in UTF-8, or is larger than 256 MB.
    """
    if path is None:
        from pydoc_data.topics import topics

        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        whole = "\n\n".join(topics[name] for name in sorted(topics))
        return Text(f"pydoc_data.topics of Python {version}", whole)
    path = Path(path)
    try:
        content = read_regular(path, _LONGEST).decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not text in UTF-8: byte {error.start} begins no character; convert the "
            "file, or name another"
        ) from None
    if not content.strip():
        raise ValueError(f"{path} is empty: expected text to evaluate on")
    return Text(path.name, content)


def windows(
    text: Text, tokens: Callable[[str], Sequence[int]], length: int, sequences: int
) -> Tensor:
    """The text's first tokens as rows that do not overlap: int64 [sequences, length].

    tokens: makes a piece of text tokens, without any that mark its beginning or end
    Fewer rows where the text ends before. Raises ValueError for a text that fills none, and for
    lengths below 2 and counts below 1.
    """
    if length < 2 or sequences < 1:
        raise ValueError(f"expected at least 1 sequence of 2 tokens, found {sequences} of {length}")
    ids: list[int] = []
    for piece in _pieces(text.content):
        ids.extend(tokens(piece))
        if len(ids) >= length * sequences:
            break
    rows = min(sequences, len(ids) // length)
    if rows == 0:
        raise ValueError(
            f"{text.name} has {len(ids)} tokens: expected at least {length}, the length of a "
            f"sequence; give a longer text, or a shorter --length"
        )
    return torch.tensor(ids[: rows * length], dtype=torch.int64).view(rows, length)


def _pieces(content: str) -> Iterator[str]:
    """The text in pieces that end with a line, where lines are shorter than a piece."""
    at = 0
    while at < len(content):
        end = content.rfind("\n", at, at + _PIECE) + 1
        end = end if end > at else at + _PIECE
        yield content[at:end]
        at = end
