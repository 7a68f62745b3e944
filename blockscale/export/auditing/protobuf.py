# SPDX-License-Identifier: BSD-3-Clause
"""Binary files read field by field: protobuf messages and flatbuffers, without their libraries."""

import struct
from collections.abc import Iterator
from typing import Any

from blockscale.export.auditing.entries import DamagedError, ReadBudget

# FlatBuffers: tables and vectors by position, every offset checked, without a library.
#
# A table begins with the distance back to its vtable: u16 sizes, then a u16 for each field that
# says
# where in the table it is, 0 for a default. Source: flatbuffers.dev/internals.


class FlatTable:
    """A table of a buffer. Fields are named by their place in the schema, unions take two."""

    def __init__(self, data: memoryview, at: int, budget: ReadBudget):
        self._data, self._at, self._budget = data, at, budget
        budget.take()
        self._vtable = at - self._number("i", at)
        self._size = self._number("H", self._vtable)
        if self._size < 4 or self._size > 4096:
            raise DamagedError(f"no table at byte {at}")

    @classmethod
    def root(
        cls, data: memoryview, identifiers: tuple[bytes, ...], budget: ReadBudget
    ) -> "FlatTable":
        """The first table of a buffer. Raises DamagedError if it is another kind of file."""
        if len(data) < 8 or bytes(data[4:8]) not in identifiers:
            raise DamagedError(f"it does not begin as {identifiers[0].decode()} files do")
        return cls(data, struct.unpack_from("<I", data, 0)[0], budget)

    def number(self, field: int, kind: str = "I", default: int = 0) -> int:
        """A number of `struct`'s kind."""
        at = self._place(field)
        return default if at is None else self._number(kind, at)

    def table(self, field: int) -> "FlatTable | None":
        """A table, or None where there is none."""
        at = self._place(field)
        return None if at is None else FlatTable(self._data, self._target(at), self._budget)

    def tables(self, field: int) -> list["FlatTable"]:
        """A vector of tables."""
        return list(self._tables(field))

    def _tables(self, field: int) -> Iterator["FlatTable"]:
        start, count = self._vector(field, 4)
        for i in range(count):
            yield FlatTable(self._data, self._target(start + 4 * i), self._budget)

    def numbers(self, field: int, kind: str) -> list[int]:
        """A vector of numbers."""
        start, count = self._vector(field, struct.calcsize(kind))
        return list(struct.unpack_from(f"<{count}{kind}", self._data, start)) if count else []

    def count(self, field: int) -> int:
        """How many entries a vector of bytes or numbers has."""
        return self._vector(field, 1)[1]

    def bytes(self, field: int) -> memoryview:
        """A vector of bytes."""
        start, count = self._vector(field, 1)
        return self._data[start : start + count]

    def text(self, field: int) -> str:
        """A text; empty where there is none."""
        return bytes(self.bytes(field)).decode("utf-8", "replace")

    def _place(self, field: int) -> int | None:
        slot = 4 + 2 * field
        if slot + 2 > self._size:
            return None
        inside = self._number("H", self._vtable + slot)
        return self._at + inside if inside else None

    def _target(self, at: int) -> int:
        return at + self._number("I", at)

    def _vector(self, field: int, width: int) -> tuple[int, int]:
        at = self._place(field)
        if at is None:
            return 0, 0
        start = self._target(at)
        count = self._number("I", start)
        if count * width > len(self._data) - start - 4:
            raise DamagedError(
                f"a vector at byte {start} should have {count:,} entries, more than the file holds"
            )
        self._budget.take(count if width > 1 else 1)
        return start + 4, count

    def _number(self, kind: str, at: int) -> Any:
        if at < 0 or at + struct.calcsize(kind) > len(self._data):
            raise DamagedError(f"byte {at} lies outside the file")
        return struct.unpack_from(f"<{kind}", self._data, at)[0]


Value = int | memoryview
Fields = dict[int, list[Value]]


def fields(data: memoryview, budget: ReadBudget) -> Fields:
    """{field: its values in order}. Raises DamagedError where the bytes are no message."""
    result: Fields = {}
    for number, value in _each(data, budget):
        result.setdefault(number, []).append(value)
    return result


def _each(data: memoryview, budget: ReadBudget) -> Iterator[tuple[int, Value]]:
    at = 0
    while at < len(data):
        budget.take()
        key, at = varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = varint(data, at)
            yield number, value
            continue
        if kind == 2:
            size, at = varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise DamagedError(f"field {number} at byte {at} has an unknown type ({kind})")
        if size > len(data) - at:
            raise DamagedError(
                f"field {number} should have {size:,} bytes, {len(data) - at:,} are left"
            )
        yield number, data[at : at + size]
        at += size


def varint(data: memoryview, at: int) -> tuple[int, int]:
    """A number at a place, and the place behind it. Raises DamagedError."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise DamagedError(f"no number at byte {at}")
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def text(values: Fields, number: int) -> str:
    """A field of text; empty if it is not there. Raises DamagedError."""
    value = values.get(number)
    if not value:
        return ""
    if not isinstance(value[-1], memoryview):
        raise DamagedError(f"field {number} is not text")
    return bytes(value[-1]).decode("utf-8", "replace")


def texts(values: Fields, number: int) -> list[str]:
    """All values of a repeated field of text."""
    return [bytes(v).decode("utf-8", "replace") for v in messages(values, number)]


def messages(values: Fields, number: int) -> list[memoryview]:
    """All values of a repeated field of messages or bytes. Raises DamagedError for numbers."""
    setting = values.get(number, [])
    if any(not isinstance(value, memoryview) for value in setting):
        raise DamagedError(f"field {number} is not a message")
    return setting  # type: ignore[return-value]


def numbers(values: Fields, number: int, budget: ReadBudget) -> list[int]:
    """All values of a repeated field of whole numbers, packed or not; signed."""
    sizes: list[int] = []
    for value in values.get(number, []):
        if isinstance(value, int):
            sizes.append(value)
            continue
        at = 0
        while at < len(value):
            budget.take()
            each, at = varint(value, at)
            sizes.append(each)
    return [each - 2**64 if each >= 2**63 else each for each in sizes]


def number(values: Fields, key: int, default: int = 0) -> int:
    """A field of one whole number, signed."""
    value = values.get(key)
    if not value or not isinstance(value[-1], int):
        return default
    return value[-1] - 2**64 if value[-1] >= 2**63 else value[-1]
