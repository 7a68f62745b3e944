# SPDX-License-Identifier: BSD-3-Clause
"""The first bytes of a GGUF file, version 3 (ggml's docs/gguf.md): keys, values, tensors."""

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

ALIGNMENT = 32
STRING, ARRAY = 8, 9
_LETTERS = {
    "u8": (0, "B"), "u16": (2, "H"), "u32": (4, "I"), "i32": (5, "i"), "f32": (6, "f"),
    "bool": (7, "?"), "u64": (10, "Q"),
}  # fmt: skip


class Value(NamedTuple):
    """A value with its type: "u8" to "u64", "i32", "f32", "bool", "text", or lists of these."""

    kind: str
    value: Any


class Place(NamedTuple):
    """A tensor in the file. shape: outermost dimension first; start: in the file."""

    shape: tuple[int, ...]
    number: int
    nbytes: int
    start: int = 0


def encoded(value: Value) -> bytes:
    """A value's type and bytes."""
    kind, what = value
    if not isinstance(what, list):
        return struct.pack("<I", _number(kind)) + _plain(kind, what)
    start = struct.pack("<IIQ", ARRAY, _number(kind), len(what))
    return start + b"".join(_plain(kind, each) for each in what)


def _number(kind: str) -> int:
    return STRING if kind == "text" else _LETTERS[kind][0]


def _plain(kind: str, what: Any) -> bytes:
    if kind == "text":
        return text(what)
    return struct.pack("<" + _LETTERS[kind][1], what)


def text(what: str) -> bytes:
    """A text's length and bytes; what was no UTF-8 when it was read is the same again."""
    data = what.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(data)) + data


def lay_out(
    metadata: Mapping[str, bytes], tensors: Mapping[str, Place], step: int = ALIGNMENT
) -> tuple[bytes, dict[str, Place]]:
    """The file's first bytes, up to the first tensor, and where each tensor goes.

    metadata: {key: what `encoded` gave, or a file's own bytes}; step: general.alignment
    """
    head = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    head += [text(key) + data for key, data in metadata.items()]
    starts, end = {}, 0
    for name, (shape, number, nbytes, _) in tensors.items():
        starts[name] = end
        dims: Sequence[int] = tuple(reversed(shape))
        place = struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, number, end)
        head.append(text(name) + place)
        end += -(-nbytes // step) * step
    start = b"".join(head)
    start += bytes(-len(start) % step)
    placed = {n: each._replace(start=len(start) + starts[n]) for n, each in tensors.items()}
    return start, placed
