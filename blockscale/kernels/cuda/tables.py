# SPDX-License-Identifier: BSD-3-Clause
"""Measured launch choices: those shipped for an H200, and what this machine added.

kernels/rates.py has the tables' form.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import triton

from blockscale.kernels import rates
from blockscale.kernels.cuda import replay
from blockscale.kernels.rates import Table

Shape = tuple[int, int, int]  # rows of x, outputs, inputs
Entry = list[Any]  # the way's name, then its settings
T = TypeVar("T")

SHIPPED = Path(__file__).parent / "tuned_h200.json"
_APART = 16.0  # a shape further away than a factor of this in n · k says nothing
_looked_up: dict[tuple[str, Shape], Entry | None] = {}


def key(kernel: str, fmt: str, device: str) -> str:
    """What a choice holds for besides the shape. The Triton is named by its minor version."""
    version = ".".join(triton.__version__.split(".")[:2])
    return f"{kernel}|{fmt}|{device}|{version}"


def lookup(kernel: str, fmt: str, shape: Shape, device: str) -> Entry | None:
    """The choice for the nearest measured shape, or None if there is none near."""
    at = key(kernel, fmt, device)
    request = (at, (_class(shape[0]), shape[1], shape[2]))
    if request not in _looked_up:
        _looked_up[request] = nearest(_tables().get(at, {}), request[1])
    return _looked_up[request]


def nearest(entries: dict[str, Entry], shape: Shape) -> Entry | None:
    """Of "M,N,K" -> entry, that of the same class of rows and the nearest n and k.

    The rows above the largest measured are as many as those.
    """
    shapes = {tuple(int(n) for n in name.split(",")): e for name, e in entries.items()}
    if not shapes:
        return None
    rows = min(_class(shape[0]), max(_class(m) for m, _, _ in shapes))

    def apart(other: Sequence[int]) -> float:
        """How many times n and k are larger or smaller, multiplied."""
        pairs = [(max(a, 1), max(b, 1)) for a, b in zip(shape[1:], other[1:], strict=True)]
        return math.prod(max(a, b) / min(a, b) for a, b in pairs)

    near = [other for other in shapes if _class(other[0]) == rows]
    best = min(near, key=apart, default=None)
    return None if best is None or apart(best) > _APART else shapes[best]


def _class(rows: int) -> int:
    """Rows rounded up to a power of two; at most 16 are alike."""
    return max(16, 1 << max(rows - 1, 0).bit_length()) if rows > 1 else 1


@cache
def _tables() -> Table:
    """The shipped table and, over it, this machine's."""
    table = rates.read(SHIPPED)
    for at, entries in rates.read(rates.cache_file()).items():
        table[at] = {**table.get(at, {}), **entries}
    return table


def record(choices: Table, path: Path | None = None) -> None:
    """Add choices to the table on disk, by default this machine's, and use them from now on."""
    rates.record(choices, path)
    forget()


def forget() -> None:
    """Read the tables again at the next lookup."""
    _tables.cache_clear()
    _looked_up.clear()
    replay.forget()


def fastest(
    candidates: Sequence[T], run: Callable[[T], Any], time: Callable[[Callable[[], Any]], float]
) -> tuple[T, float]:
    """The candidate whose run takes least time.

    A candidate that needs more shared memory or registers than the GPU has is left out. Raises
    ValueError if none runs.
    """
    best: tuple[T, float] | None = None
    for candidate in candidates:
        try:
            seconds = time(lambda chosen=candidate: run(chosen))  # type: ignore[misc]
        except triton.runtime.errors.OutOfResources:
            continue
        if best is None or seconds < best[1]:
            best = candidate, seconds
    if best is None:
        raise ValueError(f"none of {len(candidates)} candidates fits this GPU")
    return best
