# SPDX-License-Identifier: BSD-3-Clause
"""GGUF's container: keys and values, and where each tensor lies (ggml's docs/gguf.md, version 3).

A file from a stranger is read through one window that never passes the file's end: every length
and every count is compared with the bytes that are left before anything is made of it.
"""

import os
import struct
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

from blockscale.core.untrusted import FileError, open_regular, quote

MAGIC = b"GGUF"
LARGEST = 1 << 28  # bytes of keys, values and tensors' names; tokenizers take a few MB
_VERSIONS = (2, 3)
_MOST_DIMENSIONS = 4  # ggml has no more
_ALIGNMENT = 32
_LONGEST_NAME = 64 * 1024
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9


class TensorEntry(NamedTuple):
    """A tensor in a file. shape: outermost dimension first; kind: its type's number; start: in the
    file, in bytes."""

    name: str
    shape: tuple[int, ...]
    kind: int
    start: int

    @property
    def elements(self) -> int:
        return prod(self.shape)


class Container(NamedTuple):
    """What a file says before its tensors' bytes. raw: {key: its value's type and bytes}."""

    version: int
    values: dict[str, Any]
    entries: dict[str, TensorEntry]
    size: int
    raw: dict[str, bytes]


def read_container(path: Path) -> Container:
    """The keys and the tensors of a file. Raises FileError for what is no whole GGUF file."""
    with os.fdopen(open_regular(path), "rb") as file:
        return _Header(path, file).read()


class _Header:
    """Reads a file's head, once, from its beginning."""

    def __init__(self, path: Path, file: BinaryIO):
        self._path, self._file = path, file
        self._size = file.seek(0, 2)
        file.seek(0)
        self._remaining = min(self._size, LARGEST)

    def read(self) -> Container:
        version = self._version()
        tensors, keys = self._number("Q"), self._number("Q")
        self._check_count(tensors, 24, "tensors")  # a name's length, rank, type, place
        self._check_count(keys, 12, "keys")
        values: dict[str, Any] = {}
        raw: dict[str, bytes] = {}
        for _ in range(keys):
            key = self._string()
            if key in values:
                self._refuse(f"it has the key {quote(key)} twice")
            start = self._file.tell()
            values[key] = self._value(self._number("I"), 0)
            raw[key] = self._again(start)
        entries = list(self._entries(tensors))
        return Container(version, values, self._places(entries, values), self._size, raw)

    def _again(self, start: int) -> bytes:
        """What was read since a place in the file, as it is there."""
        end = self._file.tell()
        self._file.seek(start)
        return self._file.read(end - start)

    def _version(self) -> int:
        if (magic := self._take(4)) != MAGIC:
            self._refuse(f"it begins with {magic!r}, not {MAGIC!r}")
        raw = self._take(4)
        little, big = int.from_bytes(raw, "little"), int.from_bytes(raw, "big")
        if little not in _VERSIONS and big in _VERSIONS:
            self._refuse("it is big-endian, for which tools do not agree on quantized blocks", "")
        if little not in _VERSIONS:
            self._refuse(f"it has version {little}; versions 2 and 3 are supported", "")
        return little

    def _entries(self, count: int) -> Iterator[TensorEntry]:
        names: set[str] = set()
        for _ in range(count):
            name = self._string(_LONGEST_NAME)
            if name in names:
                self._refuse(f"it has the tensor {quote(name)} twice")
            names.add(name)
            rank = self._number("I")
            if rank > _MOST_DIMENSIONS:
                self._refuse(
                    f"tensor {quote(name)} has {rank} dimensions, at most 4 are possible in ggml"
                )
            shape = tuple(reversed([self._number("Q") for _ in range(rank)]))
            if prod(shape) >= 1 << 62:
                self._refuse(f"tensor {quote(name)} has {prod(shape)} elements")
            yield TensorEntry(name, shape, self._number("I"), self._number("Q"))

    def _places(self, entries: list[TensorEntry], values: dict[str, Any]) -> dict[str, TensorEntry]:
        """The entries with their places in the file, once these are checked."""
        step = values.get("general.alignment", _ALIGNMENT)
        if (
            not isinstance(step, int)
            or isinstance(step, bool)
            or step % 8
            or not 8 <= step <= 2**20
        ):
            self._refuse(f"general.alignment is {step!r}, expected a multiple of 8 up to 2^20")
        first = -(-self._file.tell() // step) * step
        for name, _, _, start in entries:
            if start % step or first + start > self._size:
                self._refuse(
                    f"tensor {quote(name)} begins {start} bytes after byte {first}, which is not "
                    f"at a multiple of {step} within {self._size} bytes"
                )
        return {each.name: each._replace(start=first + each.start) for each in entries}

    def _value(self, kind: int, depth: int) -> Any:
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY or depth == 4:
            self._refuse(f"a value has the type {kind} at depth {depth}, which GGUF does not have")
        kind, count = self._number("I"), self._number("Q")
        if kind in _SCALARS:
            letter = _SCALARS[kind]
            self._check_count(count, struct.calcsize("<" + letter), "values of an array")
            data = self._take(count * struct.calcsize("<" + letter))
            return list(struct.unpack(f"<{count}{letter}", data))
        self._check_count(count, 8, "values of an array")
        return [self._value(kind, depth + 1) for _ in range(count)]

    def _check_count(self, count: int, each: int, what: str) -> None:
        if count * each > self._remaining:
            self._refuse(
                f"it declares {count} {what}, and only {self._remaining} bytes are left for them"
            )

    def _string(self, longest: int = LARGEST) -> str:
        length = self._number("Q")
        if length > longest:
            self._refuse(f"a string of {length} bytes is too long")
        # tokenizers hold bytes that are no UTF-8 by themselves
        return self._take(length).decode("utf-8", "surrogateescape")

    def _number(self, letter: str) -> Any:
        [number] = struct.unpack("<" + letter, self._take(struct.calcsize("<" + letter)))
        return number

    def _take(self, count: int) -> bytes:
        if count > self._remaining:
            reason = (
                ("the file is truncated")
                if self._remaining + count > self._size
                else f"the limit is {LARGEST} bytes"
            )
            self._refuse(
                f"its header needs {count} bytes where {self._remaining} are left: {reason}"
            )
        self._remaining -= count
        data = self._file.read(count)
        if len(data) != count:
            self._refuse("it was truncated while being read")
        return data

    def _refuse(self, reason: str, remedy: str = ": download or copy it again") -> NoReturn:
        raise FileError(f"{self._path}: this GGUF file cannot be read: {reason}{remedy}")
