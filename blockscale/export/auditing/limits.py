# SPDX-License-Identifier: BSD-3-Clause
"""What an audit accepts of a file, whoever wrote it: sizes, counts, and errors by name."""

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from blockscale.files.metadata import FileError

MODEL = 4 * 2**30  # bytes of an ONNX file or an ExecuTorch program that are looked at
TEXT = 512 * 2**20  # bytes of JSON in a .pt2 file
ITEMS = 5_000_000  # nodes, tensors and values of one file
RATIO = 200  # how much larger a compressed part may become
WAY = 200  # nodes between a tensor and what computes with it


class DamagedError(ValueError):
    """Bytes that are not what their format says."""


@contextmanager
def opened(path: Path) -> Iterator[memoryview]:
    """The bytes of a file, mapped and not read. Raises FileError if it is empty or too large."""
    size = path.stat().st_size
    if not size:
        raise FileError(f"{path} is empty")
    if size > MODEL:
        raise FileError(f"{path} has {size:,} bytes, an audit reads files of at most {MODEL:,}")
    with path.open("rb") as file:  # the map goes with the last view of it
        yield memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


class Budget:
    """Counts what was read, so that a small file cannot ask for endless work."""

    def __init__(self, items: int = ITEMS):
        self.left = items

    def take(self, count: int = 1) -> None:
        """Raises DamagedError when too much was read."""
        self.left -= count
        if self.left < 0:
            raise DamagedError(f"it has more than {ITEMS:,} parts")
