# SPDX-License-Identifier: BSD-3-Clause
"""A checkpoint with other names and shapes of its tensors: renamed, joined, parted, in another
order. Codes and scales move; none is changed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.core.untrusted import quote
from blockscale.export.checkpoints.checkpoint import Checkpoint, Stored
from blockscale.files.metadata import FileError
from blockscale.ops.tensor import QTensor


@dataclass(frozen=True)
class TensorPiece:
    """How one tensor is made of a checkpoint's.

    sources: names there; of several, each is an index of a first dimension (`stacked`), or their
        rows follow each other
    heads: rows are of so many heads, whose halves are interleaved, or (negative) separated again
    addend: to every number of a tensor that is not quantized, in float32
    transpose: a tensor that is not quantized has its two dimensions the other way round
    expert: the index of the source's first dimension; half: the first (0) or second (1) half of
        rows; row: a vector becomes a matrix of one row (True), or that a vector (False)
    """

    sources: tuple[str, ...]
    stacked: bool = False
    heads: int = 0
    addend: float = 0.0
    transpose: bool = False
    expert: int | None = None
    half: int | None = None
    row: bool | None = None

    @property
    def name(self) -> str:
        """The sources in one word, for people."""
        first, last = self.sources[0], self.sources[-1]
        return first if first == last else f"{first} … {last}"


class RegroupedCheckpoint(Checkpoint):
    """The tensors of `pieces`, {name: how it is made}, of a checkpoint that stays open beside."""

    def __init__(self, checkpoint: Checkpoint, pieces: Mapping[str, TensorPiece]):
        super().__init__(checkpoint.path, checkpoint.evidence)
        self.inner, self.pieces, self.producer = checkpoint, dict(pieces), checkpoint.producer
        self.metadata, self.warnings = checkpoint.metadata, checkpoint.warnings
        for name, piece in pieces.items():
            results = [checkpoint.stored[each] for each in piece.sources]
            self.stored[name] = _stored(name, piece, results)

    def _read(self, stored: Stored) -> QTensor | Tensor:
        piece = self.pieces[stored.name]
        return _regroup(stored.name, piece, [self.inner[each] for each in piece.sources])

    def without_codes(self, name: str) -> QTensor | Tensor:
        piece = self.pieces[name]
        return _regroup(name, piece, [self.inner.without_codes(each) for each in piece.sources])

    def first_rows(self, name: str) -> QTensor | None:
        piece = self.pieces[name]
        alone = piece == TensorPiece(piece.sources) or piece.transpose
        return self.inner.first_rows(piece.sources[0]) if alone else None

    def order(self, name: str) -> Tensor | None:
        piece = self.pieces[name]
        return self.inner.order(piece.sources[0]) if piece == TensorPiece(piece.sources) else None

    def has_order(self, name: str) -> bool:
        return any(self.inner.has_order(each) for each in self.pieces[name].sources)

    def file_of(self, name: str) -> Path:
        return self.inner.file_of(self.pieces[name].sources[0])


def _stored(name: str, piece: TensorPiece, storeds: Sequence[Stored]) -> Stored:
    """What the pieces' heads tell together."""
    first = storeds[0]
    unread = next((each.unread for each in storeds if each.unread), "")
    shape, nbytes = first.shape, sum(each.nbytes for each in storeds)
    kinds = sorted({each.format or each.kind for each in storeds})
    if len(kinds) > 1:
        unread = unread or f"it is made of {len(storeds)} tensors, which are {' and '.join(kinds)}"
    if piece.stacked:
        shape = (len(storeds), *shape)
        unread = unread or _unequal([each.shape for each in storeds])
    elif len(storeds) > 1:
        shape = (*shape[:-2], sum(each.shape[-2] for each in storeds), shape[-1])
    if piece.expert is not None:
        shape, nbytes = shape[1:], nbytes // max(shape[0], 1)
    if piece.half is not None:
        shape, nbytes = (*shape[:-2], shape[-2] // 2, shape[-1]), nbytes // 2
    if piece.transpose and first.format is None and len(shape) == 2:
        shape = (shape[1], shape[0])
    if piece.row is not None:
        shape = (1, prod(shape)) if piece.row else (prod(shape),)
    kind, dtype = first.kind, first.dtype
    if piece.addend and first.format is None:
        kind, nbytes, dtype = "F32", 4 * prod(shape), torch.float32
    return Stored(name, kind, shape, nbytes, first.format, unread, first.flat, dtype)


def _unequal(shapes: Sequence[tuple[int, ...]]) -> str:
    results = sorted(set(shapes))
    more = " and ".join(str(list(each)) for each in results[:3])
    return f"its {len(shapes)} tensors have the shapes {more}" if len(results) > 1 else ""


def _regroup(name: str, piece: TensorPiece, members: list[QTensor | Tensor]) -> QTensor | Tensor:
    """The tensor of a piece. Raises FileError where parts cannot move as it says."""
    try:
        value = members[0]
        if piece.stacked:
            value = _each(members, lambda parts: torch.stack(list(parts)))
        elif len(members) > 1:
            value = _each(members, lambda parts: torch.cat(list(parts), -2))
        if piece.expert is not None:
            value = _each([value], partial(_index, piece.expert, value.shape[0]))
        if piece.half is not None:
            value = _each([value], partial(_half, piece.half, value.shape[-2]))
        if piece.heads:
            order = (interleaved if piece.heads > 0 else separate)(value.shape[0], abs(piece.heads))
            value = reorder(value, order)
    except ValueError as error:
        raise FileError(f"{quote(name)}: {error}") from None
    if isinstance(value, Tensor):
        return _change(piece, value)
    return value


def _change(piece: TensorPiece, value: Tensor) -> Tensor:
    if piece.transpose and value.ndim == 2:
        value = value.T.contiguous()
    if piece.row is not None:
        value = value.reshape(1, -1) if piece.row else value.reshape(-1)
    return value.to(torch.float32) + piece.addend if piece.addend else value


def _index(at: int, count: int, parts: Sequence[Tensor]) -> Tensor:
    [part] = parts
    return part[at if part.shape[0] == count else 0]


def _half(which: int, rows: int, parts: Sequence[Tensor]) -> Tensor:
    [part] = parts
    if part.shape[-2] != rows:
        return part
    return part.narrow(-2, which * (rows // 2), rows // 2).contiguous()


def _each(
    members: Sequence[QTensor | Tensor], change: Callable[[Sequence[Tensor]], Tensor]
) -> QTensor | Tensor:
    """What `change` makes of tensors, or of each part of quantized ones.

    Raises ValueError where the parts are not those of a tensor of the format any more.
    """
    first = members[0]
    if isinstance(first, Tensor):
        return change([each for each in members if isinstance(each, Tensor)])
    same = [each for each in members if isinstance(each, QTensor)]
    packed = change([each.packed for each in same])
    shape = (*packed.shape[:-1], first.size)
    kinds = first.format.stored(shape)
    parts: dict[str, Any] = {}
    for name, part in first.qparams._asdict().items():
        if part is None:
            parts[name] = None
            continue
        all_parts = [getattr(each.qparams, name) for each in same]
        shared = (part.numel() == 1 and name == "outer") or name == "book"
        if shared and all(torch.equal(part, each) for each in all_parts):
            parts[name] = part.reshape(kinds[name][1]) if name in kinds else part
            continue
        if shared and len(same) > 1:
            raise ValueError(
                f"{first.format}: its {len(same)} tensors have different outer scales (or "
                "tables), and one tensor can hold only one: quantize them with the same, or "
                "in another format"
            )
        new_part = change(all_parts)
        if name in kinds and tuple(new_part.shape) != tuple(kinds[name][1]):
            raise ValueError(
                f"{first.format}: its {name} is shared by several rows, so rows cannot be reordered"
            )
        parts[name] = new_part
    return QTensor(packed, QParams(**parts), parse(str(first.format)), first.size)


# The order of rows of q and k: llama.cpp has the halves of a head interleaved.


def interleaved(rows: int, heads: int) -> Tensor:
    """For each row in GGUF, which of transformers' it is: int64 [rows].

    As llama.cpp's convert_hf_to_gguf.py has it (`permute`). Raises ValueError where `rows` are no
    whole heads of an even size.
    """
    if heads < 1 or rows % (2 * heads):
        raise ValueError(f"{rows} rows cannot be divided into {heads} heads of an even size")
    places = torch.arange(rows).reshape(heads, 2, rows // heads // 2)
    return places.transpose(1, 2).reshape(-1)


def separate(rows: int, heads: int) -> Tensor:
    """The other way: for each row of transformers, which of GGUF's it is."""
    return interleaved(rows, heads).argsort()


def reorder(value: QTensor | Tensor, order: Tensor) -> QTensor | Tensor:
    """Row i of the result is row order[i]. Raises ValueError where rows share scales with others.

    Codes and scales move; none is changed.
    """
    if isinstance(value, Tensor):
        return value[order]
    fmt, count = value.format, value.shape[0]
    if fmt.block.flat:
        raise ValueError(
            f"{fmt}: rows share scales with their neighbours, so they cannot be reordered"
        )
    parts = {}
    for name, part in value.qparams._asdict().items():
        if part is None or (part.ndim and part.shape[0] == 1) or name == "book":
            parts[name] = part
        elif part.shape[0] == count:
            parts[name] = part[order]
        else:
            raise ValueError(
                f"{fmt}: rows share scales with their neighbours, so they cannot be reordered"
            )
    return QTensor(value.packed[order], QParams(**parts), fmt, value.size)
