# SPDX-License-Identifier: BSD-3-Clause
"""Protocol buffers: the fields of a message, without a library and without copying.

The wire format: a number (varint) of field << 3 | type; 0 is a varint, 1 eight bytes, 2 a length
and as many bytes, 5 four bytes. Source: protobuf.dev/programming-guides/encoding.
"""

from collections.abc import Iterator

from blockscale.export.auditing.limits import Budget, DamagedError

Value = int | memoryview
Fields = dict[int, list[Value]]


def fields(data: memoryview, budget: Budget) -> Fields:
    """{field: its values in order}. Raises DamagedError where the bytes are no message."""
    found: Fields = {}
    for number, value in _each(data, budget):
        found.setdefault(number, []).append(value)
    return found


def _each(data: memoryview, budget: Budget) -> Iterator[tuple[int, Value]]:
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
    found = values.get(number)
    if not found:
        return ""
    if not isinstance(found[-1], memoryview):
        raise DamagedError(f"field {number} is not text")
    return bytes(found[-1]).decode("utf-8", "replace")


def texts(values: Fields, number: int) -> list[str]:
    """All values of a repeated field of text."""
    return [bytes(v).decode("utf-8", "replace") for v in messages(values, number)]


def messages(values: Fields, number: int) -> list[memoryview]:
    """All values of a repeated field of messages or bytes. Raises DamagedError for numbers."""
    found = values.get(number, [])
    if any(not isinstance(value, memoryview) for value in found):
        raise DamagedError(f"field {number} is not a message")
    return found  # type: ignore[return-value]


def numbers(values: Fields, number: int, budget: Budget) -> list[int]:
    """All values of a repeated field of whole numbers, packed or not; signed."""
    found: list[int] = []
    for value in values.get(number, []):
        if isinstance(value, int):
            found.append(value)
            continue
        at = 0
        while at < len(value):
            budget.take()
            each, at = varint(value, at)
            found.append(each)
    return [each - 2**64 if each >= 2**63 else each for each in found]


def number(values: Fields, key: int, default: int = 0) -> int:
    """A field of one whole number, signed."""
    found = values.get(key)
    if not found or not isinstance(found[-1], int):
        return default
    return found[-1] - 2**64 if found[-1] >= 2**63 else found[-1]
