# SPDX-License-Identifier: BSD-3-Clause
"""Where the bytes of tensors lie in files, and reading them."""

import os
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.core.element import Element
from blockscale.core.pack import pack, packed_dtype, packed_size
from blockscale.core.untrusted import FileError, open_regular, quote
from blockscale.files.stream import bytes_of

_CHUNK = 1 << 24  # bytes read at a time


class Place(NamedTuple):
    """Bytes of a tensor: in a file from `start` on, or their content."""

    file: Path
    start: int
    nbytes: int
    content: bytes | None = None


class Files:
    """Files that are open for reading as long as they are needed."""

    def __init__(self) -> None:
        self._open: dict[Path, int] = {}

    def read(self, place: Place) -> Tensor:
        """The bytes of a place, uint8 [nbytes]. Raises FileError where the file was cut since."""
        data = torch.empty(place.nbytes, dtype=torch.uint8)
        target = bytes_of(data)
        if place.content is not None:
            target[:] = place.content
            return data
        if place.file not in self._open:
            self._open[place.file] = open_regular(place.file)
        offset = 0
        while offset < place.nbytes:
            part = target[offset : offset + _CHUNK]
            count = os.preadv(self._open[place.file], [part], place.start + offset)
            if not count:
                end = place.start + offset
                raise FileError(
                    f"{place.file}: ends at byte {end}: it was truncated while being read"
                )
            offset += count
        return data

    def close(self) -> None:
        """Close the files; reading opens them again."""
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()


def fields(data: Tensor, bits: int, count: int) -> Tensor:
    """Numbers of `bits` (1, 2, 4, 8) after one another, the first lowest: uint8 [n] -> [count]."""
    if bits == 8:
        return data[:count]
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
    apart = (data.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)
    return apart.flatten()[:count]


def packed_rows(data: Tensor, element: Element, shape: tuple[int, ...]) -> Tensor:
    """Codes after one another in the flattened tensor -> as we pack them, row by row.

    data: uint8; the first code of a byte in its lowest bits, or 8 or 16 bits a code
    """
    size = shape[-1] if shape else 1
    row = (*shape[:-1], packed_size(element, size))
    if element.bits in (8, 16) or size * element.bits % 8 == 0:
        return data.view(packed_dtype(element)).reshape(row)
    count = size
    for n in shape[:-1]:
        count *= n
    patterns = fields(data, element.bits, count).reshape(shape)
    return pack(element.from_bits(patterns), element).reshape(row)


def check_apart(places: Mapping[str, Place]) -> None:
    """Raise FileError for tensors that share some bytes; those that share all are one twice."""
    files: dict[Path, list[tuple[int, int, str]]] = {}
    for name, place in places.items():
        if place.content is None and place.nbytes:
            end = place.start + place.nbytes
            files.setdefault(place.file, []).append((place.start, end, name))
    for file, names in files.items():
        names.sort()
        for (start, end, first), (begin, stop, second) in pairwise(names):
            if begin < end and (begin, stop) != (start, end):
                raise FileError(f"{file}: tensors {quote(first)} and {quote(second)} share bytes")
