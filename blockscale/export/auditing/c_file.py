# SPDX-License-Identifier: BSD-3-Clause
"""C files of ours: the constant arrays, by the names of the nodes that read them."""

import re

from blockscale.export.auditing.entries import DamagedError, FileTensor, ReadBudget

HEAD = b"/* An integer model in C99, written by blockscale."
_ARRAY = re.compile(rb"^static const (u?int(8|16|32|64))_t (c\d+_\w+)\[(\d+)\] = \{$", re.M)
_FLOATS = re.compile(rb"\b(?:float|double)\b|\b\d+\.\d*|\b\d+[eE]-?\d+\b")
_WEIGHT = re.compile(r"^c\d+_(?:integers_)?(\w+)_weight(?:_(\d+))?$")


def tensors(data: memoryview) -> list[FileTensor]:
    """The constants of a file. Raises DamagedError for one that is cut short, whose arrays do not
    have the elements that they state, or that computes with floats."""
    text = bytes(data)
    if not text.endswith(b"}\n"):
        raise DamagedError("it has no end mark of blockscale's C files: it was cut short")
    if match := _FLOATS.search(text, text.find(b"#include")):
        line = text.count(b"\n", 0, match.start()) + 1
        raise DamagedError(f"its line {line} has the float {match[0].decode()!r}")
    budget, results = ReadBudget(), []
    for each in _ARRAY.finditer(text):
        budget.take()
        results.append(_array(text, each))
    return results


def _array(text: bytes, match: re.Match[bytes]) -> FileTensor:
    ctype, name = match[1].decode(), match[3].decode()
    bits, size = int(match[2]), int(match[4])
    end = text.find(b"};", match.end())
    count = text.count(b",", match.end(), end if end >= 0 else len(text))
    if count != size:
        raise DamagedError(f"{name} has {count} elements, its header says {size}")
    weight = _WEIGHT.match(name)
    low = weight is not None and not weight[1].rpartition("_default")[0].endswith("_norm")
    stored = FileTensor(
        name, ctype, (size,), bits, size * bits // 8, low=low,
        reader="in integers" if low else "",
    )  # fmt: skip
    if low and weight is not None:
        stored.name = ".".join(filter(None, weight.groups()))
    return stored
