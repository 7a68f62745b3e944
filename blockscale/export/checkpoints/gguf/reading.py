# SPDX-License-Identifier: BSD-3-Clause
"""GGUF files, whole or split, as checkpoints: blocks become QTensors with the codes as they are."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from math import prod
from pathlib import Path

import torch
from torch import Tensor, nn

from blockscale.core.pack import packed_dtype, packed_size
from blockscale.core.parse import parse
from blockscale.core.untrusted import FileError, open_regular, quote
from blockscale.export.checkpoints.checkpoint import Checkpoint, Stored
from blockscale.export.checkpoints.gguf import records
from blockscale.export.checkpoints.gguf.container import MAGIC, TensorEntry, read_container
from blockscale.export.checkpoints.gguf.records import (
    FILE_TYPES,
    GRIDS,
    PLAIN,
    TYPES,
    BlockType,
    Parts,
    scale_of,
)
from blockscale.export.checkpoints.gguf.tensors import pieces_in_model
from blockscale.export.checkpoints.regrouped import RegroupedCheckpoint
from blockscale.files.stream import bytes_of
from blockscale.ops import primitives
from blockscale.ops.tensor import QTensor, from_parts

_CHUNK = 1 << 22  # bytes of blocks that are taken apart at a time
_SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_PLAIN = {number: (name, dtype) for name, (number, dtype) in PLAIN.items()}
_GRIDS = {name for name, _, _ in GRIDS.values()}
_BLOCKS = {each.number: (name, each) for name, each in TYPES.items()}


def recognize(path: Path) -> str | None:
    """What tells that it is one: the file's first bytes."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return f"it begins with {MAGIC.decode()}" if file.read(4) == MAGIC else None


class GGUF(Checkpoint):
    """A GGUF file, or all files of one that was split; names are those in the file.

    metadata: the first file's keys and values. Shapes have the outermost dimension first.
    """

    producer = "GGUF"

    def __init__(self, path: Path, evidence: str):
        super().__init__(path, evidence)
        self._files: dict[Path, int] = {}
        self._entries: dict[str, tuple[Path, TensorEntry]] = {}
        self.raw: dict[str, bytes] = {}  # of metadata: {key: the type and bytes of its value}
        try:
            for file in _files(path):
                self._add(file)
        except BaseException:
            self.close()
            raise
        self._check_total()
        self._scales = self._scales_of_scales()
        if of_grids := [n for n, e in self.stored.items() if e.kind in _GRIDS and not e.unread]:
            self.warnings.append(
                f"{quote(of_grids[0])} and {len(of_grids) - 1} more hold vectors of a ggml "
                f"grid ({self.stored[of_grids[0]].kind}), which no format here has: they are "
                "read as float32"
            )
        value = FILE_TYPES.get(self.metadata.get("general.file_type", -1))
        if value is not None and all(each.kind != value for each in self.stored.values()):
            self.warnings.append(f"general.file_type is {value}, and no tensor has that type")

    def _add(self, file: Path) -> None:
        container = read_container(file)
        self._files[file] = open_regular(file)
        self.metadata, self.raw = self.metadata or container.values, self.raw or container.raw
        spans = []
        for name, entry in container.entries.items():
            if name in self.stored:
                raise FileError(f"{file}: tensor {quote(name)} is in another of its files, too")
            stored = _stored(file, entry)
            if entry.start + stored.nbytes > container.size:
                raise FileError(
                    f"{file}: tensor {quote(name)} ends at byte {entry.start + stored.nbytes}, "
                    f"and the file has {container.size}: download or copy it again"
                )
            self.stored[name], self._entries[name] = stored, (file, entry)
            spans.append((entry.start, entry.start + stored.nbytes, name))
        _check_apart(file, spans)

    def _check_total(self) -> None:
        value = self.metadata.get("split.tensors.count")
        if len(self._files) > 1 and value is not None and value != len(self.stored):
            count = len(self._files)
            self.close()
            raise FileError(
                f"{self.path}: its {count} files hold {len(self.stored)} tensors, and the "
                f"first declares {value}"
            )

    def _scales_of_scales(self) -> dict[str, tuple[Path, TensorEntry]]:
        """{NVFP4 tensor: where that is by which all its scales are multiplied}, of those that have
        it beside them; it is no tensor of its own then."""
        data = {}
        for name, stored in list(self.stored.items()):
            beside = scale_of(name)
            if stored.kind != "NVFP4" or beside not in self.stored:
                continue
            value = self[beside] if prod(self.stored[beside].shape) != 1 else torch.ones(1)
            assert isinstance(value, Tensor)
            if not value.numel() or bool((value != value.reshape(-1)[0]).any()):
                why = f"its experts have different outer scales ({beside})"
                self.stored[name] = replace(stored, unread=f"{why}, and a format has only one")
                continue
            data[name] = self._entries.pop(beside)
            del self.stored[beside]
        return data

    def _read(self, stored: Stored) -> QTensor | Tensor:
        file, entry = self._entries[stored.name]
        if entry.kind in _PLAIN:
            values = torch.empty(entry.shape, dtype=_PLAIN[entry.kind][1])
            self._fill(file, bytes_of(values), entry.start)
            return values
        if entry.kind in GRIDS:
            kind, _, size = GRIDS[entry.kind]
            return dequantized(kind, self.blocks(stored.name), size, entry.shape)
        return self._quantized(file, entry, _BLOCKS[entry.kind][1])

    def _first(self, file: Path, entry: TensorEntry) -> float:
        """The first number of a tensor that is not quantized."""
        value = torch.empty(1, dtype=_PLAIN[entry.kind][1])
        self._fill(file, bytes_of(value), entry.start)
        return float(value)

    def blocks(self, name: str) -> Tensor:
        """The bytes of a tensor, uint8, also of one whose values have no format here."""
        file, entry = self._entries[name]
        data = torch.empty(self.stored[name].nbytes, dtype=torch.uint8)
        self._fill(file, bytes_of(data), entry.start)
        return data

    def _quantized(self, file: Path, entry: TensorEntry, of: BlockType) -> QTensor:
        """Blocks are taken apart a few MB at a time: no more lies in memory beside the result."""
        fmt = parse(of.format)
        row, shapes = entry.shape[-1], fmt.stored(entry.shape)
        whole = {part: torch.ones(shape, dtype=dtype) for part, (dtype, shape) in shapes.items()}
        whole["codes"] = torch.empty(
            (*entry.shape[:-1], packed_size(fmt.element, row)), dtype=packed_dtype(fmt.element)
        )
        kind = _BLOCKS[entry.kind][0]
        native = records.record(kind) is not None
        by_block = {part: each.view(-1) for part, each in whole.items()}
        for start, blocks in self._blocks(file, entry, of):
            if native:
                records.apart_into(kind, blocks, start, whole)
                continue
            parts = of.apart(blocks)
            parts["codes"] = primitives.pack(parts["codes"], of.format)
            for part, piece in parts.items():
                first = start * piece.shape[-1]
                by_block[part][first : first + piece.numel()] = piece.reshape(-1)
        whole |= records.negate(kind, whole) if native else {}
        _check_codes(entry, whole)
        if entry.name in self._scales:  # else NVFP4 has one level: its outer scale stays 1
            whole["outer"].fill_(self._first(*self._scales[entry.name]))
        return from_parts(fmt, row, whole)

    def _blocks(
        self, file: Path, entry: TensorEntry, of: BlockType
    ) -> Iterator[tuple[int, Tensor]]:
        """(number of the first, blocks [n, size])"""
        count, step = entry.elements // of.elements, max(1, _CHUNK // of.size)
        room = torch.empty((min(step, count), of.size), dtype=torch.uint8)
        for start in range(0, count, step):
            blocks = room[: min(step, count - start)]
            self._fill(file, bytes_of(blocks), entry.start + start * of.size)
            yield start, blocks

    def _fill(self, file: Path, target: memoryview, start: int) -> None:
        offset = 0
        while offset < len(target):
            read = os.preadv(self._files[file], [target[offset : offset + _CHUNK]], start + offset)
            if not read:
                raise FileError(
                    f"{file}: ends at byte {start + offset}: it was truncated while being read"
                )
            offset += read

    def in_model(self, model: nn.Module) -> Checkpoint:
        return RegroupedCheckpoint(
            self, pieces_in_model(model, self.path, self.metadata, self.stored)
        )

    def file_of(self, name: str) -> Path:
        return self._entries[name][0]

    def close(self) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()


def _files(path: Path) -> list[Path]:
    """The files of a split model, of which `path` is one; else `path` alone."""
    match = _SPLIT.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    files = [
        path.with_name(f"{match['stem']}-{i:05d}-of-{match['count']}.gguf")
        for i in range(1, count + 1)
    ]
    missing = [each.name for each in files if not each.is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise FileError(
            f"{path}: {missing[0]}{more} of its {count} files is missing in the same directory"
        )
    return files


def _stored(file: Path, entry: TensorEntry) -> Stored:
    """What an entry is. Raises FileError for rows that are no whole blocks."""
    name, shape = entry.name, entry.shape
    if entry.kind in _PLAIN:
        kind, dtype = _PLAIN[entry.kind]
        return Stored(name, kind, shape, entry.elements * dtype.itemsize, dtype=dtype)
    if entry.kind in _BLOCKS:
        kind, of = _BLOCKS[entry.kind]
        elements, size, fmt, unread = of.elements, of.size, of.format, ""
    elif entry.kind in GRIDS:
        kind, elements, size = GRIDS[entry.kind]
        fmt, unread = None, unread_grid(kind)
    else:
        kind, reason = f"type {entry.kind}", "an unknown type: it may be a newer one"
        return Stored(name, kind, shape, 0, None, reason)
    if not shape or shape[-1] % elements:
        raise FileError(
            f"{file}: tensor {quote(name)} of {kind} has the shape {list(shape)}, whose rows "
            f"do not divide into blocks of {elements}"
        )
    nbytes = prod(shape) // elements * size
    return Stored(name, kind, shape, nbytes, fmt, unread, dtype=None if fmt else torch.float32)


def _check_apart(file: Path, spans: list[tuple[int, int, str]]) -> None:
    """Raise FileError for tensors that share bytes."""
    spans.sort()
    for (_, end, first), (start, stop, second) in pairwise(spans):
        if start < end and stop > start:
            raise FileError(f"{file}: tensors {quote(first)} and {quote(second)} share bytes")


def _check_codes(entry: TensorEntry, parts: Parts) -> None:
    """Raise FileError for bytes that no writer stores, and that mean something else here.

    parts: as a format stores them
    """
    kind = _BLOCKS[entry.kind][0]
    bad = {
        "TQ2_0": lambda: (_twos(parts["codes"]), "a code 3 where only 0 to 2 exist"),
        "MXFP4": lambda: (parts["scale"] == 255, "a scale code 255, which is NaN in OCP MX"),
        "NVFP4": lambda: (parts["scale"] >= 127, "a scale that is negative or NaN in e4m3"),
    }.get(kind)
    if bad is not None:
        result, what = bad()
        if bool(result.any()):
            name = quote(entry.name)
            raise FileError(
                f"tensor {name} of {kind} has {what}: no writer stores that: the file is damaged"
            )


def _twos(packed: Tensor) -> Tensor:
    """Where two bits are 10: -2 as a code, of which ternary has none."""
    return (packed >> 1) & ~packed & 0x55 != 0


# Tensors of IQ1, IQ2 and IQ3: vectors of grids that ggml found by search, read as float32.
#
# A grid is a table of 256 to 2048 vectors of ggml's own, which no rule gives; it is no part of
# this program. The package gguf (the extra `gguf`), which is ggml's own for Python, has them.


PACKAGE = "gguf"
_ROWS = 1 << 22  # bytes of blocks that are decoded at a time


def unread_grid(kind: str) -> str:
    """Why a tensor of this kind cannot be read here; empty where it can."""
    if find_spec(PACKAGE) is not None:
        return ""
    return (
        f"{kind} holds vectors of a ggml grid, which no format here has: with the package "
        "gguf installed it is read as float32 (pip install 'blockscale[gguf]')"
    )


def dequantized(kind: str, blocks: Tensor, size: int, shape: Sequence[int]) -> Tensor:
    """float32 values, as the package gguf decodes them. blocks: uint8, each of `size` bytes."""
    import gguf

    of = gguf.GGMLQuantizationType[kind]
    whole, start = torch.empty(*shape, dtype=torch.float32), 0
    flat, rows = whole.view(-1), blocks.reshape(-1, size)
    for part in rows.split(max(1, _ROWS // size)):
        result = torch.from_numpy(gguf.quants.dequantize(part.numpy(), of)).reshape(-1)
        flat[start : start + result.numel()] = result
        start += result.numel()
    return whole
