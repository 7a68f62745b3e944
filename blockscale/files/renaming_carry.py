# SPDX-License-Identifier: BSD-3-Clause
"""Quantized pieces -> the quantized tensor made of them, every code and scale as it is.

transformers stacks, joins, cuts, transposes and permutes whole rows of what a layer sums over. So
its own operations are run on numbers of rows in place of tensors: what comes out says which stored
row each row of the result is. Then a format is looked for whose blocks put each of these rows under
the scale that it has (core.joined_weights: `int8:tensor:fp32` of experts is `int8:block*x*:fp32`,
and of an expert's gate and up projection `int8:block512x*:fp32`); the scales are moved like rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from blockscale.core.arithmetic.sums import SumInteger
from blockscale.core.block import WHOLE
from blockscale.core.cuts import Sizes, block_sizes, can_be_cut
from blockscale.core.format import Format
from blockscale.core.joined_weights import of_matrix, of_stack
from blockscale.core.pack import of_joined_stack, stored_shape
from blockscale.core.recipe import read_bias
from blockscale.files.metadata import TensorInfo
from blockscale.files.renaming_moves import Move
from blockscale.ops.batching import within_rows


@dataclass(frozen=True)
class PartRows:
    """A part (codes, scale, …) of a quantized tensor, gathered from the same part of its pieces.

    names: the pieces'; shape: the result's
    rows: int64, which row of them each row is: all rows counted through, piece after piece
    """

    names: tuple[str, ...]
    rows: Tensor
    shape: tuple[int, ...]

    def of(self, tensors: Mapping[str, Tensor], counts: Sequence[int]) -> Tensor:
        """The part, of {name: its part} with `counts` rows each. One piece is read at a time."""
        dtype, width = tensors[self.names[0]].dtype, prod(self.shape) // max(len(self.rows), 1)
        rows = torch.empty((len(self.rows), width), dtype=dtype, device="cpu")
        order = self.rows.argsort(stable=True)
        ends = torch.tensor([0, *counts], device="cpu").cumsum(0)
        places = torch.searchsorted(self.rows[order], ends).tolist()
        for i, name in enumerate(self.names):
            goes = order[places[i] : places[i + 1]]
            piece = tensors[name].reshape(counts[i], width)
            rows[goes] = piece[self.rows[goes] - ends[i]]
        return rows.reshape(self.shape)


class _Pieces(NamedTuple):
    """What pieces that go together have in common, and how many rows each has as it is stored.

    sizes: {part: how many rows and columns of a matrix share one entry of it}
    """

    info: TensorInfo
    fmt: Format
    shapes: tuple[tuple[int, ...], ...]
    sizes: Mapping[str, Sizes]

    @property
    def width(self) -> int:
        return self.shapes[0][-1]

    @property
    def matrices(self) -> list[int]:
        """The number of rows of each matrix of each piece."""
        return [shape[-2] for shape in self.shapes for _ in range(prod(shape[:-2]))]


@dataclass(frozen=True)
class CarriedTensor:
    """A quantized tensor of pieces: how it is stored, and {part: where its rows come from}."""

    info: TensorInfo
    parts: Mapping[str, PartRows]
    counts: Mapping[str, tuple[int, ...]]  # {part: rows in each piece}

    def part(self, part: str, tensors: Mapping[str, Tensor]) -> Tensor:
        """Of {piece: its part}."""
        return self.parts[part].of(tensors, self.counts[part])


def carry(
    model: nn.Module, move: Move, infos: Mapping[str, TensorInfo], targets: Mapping[str, torch.Size]
) -> dict[str, CarriedTensor] | None:
    """{the model's name: how it is made}, or None where codes cannot be kept.

    infos: {stored name: how it is stored}, of the move's sources that are quantized
    targets: the shapes of the model's tensors
    """
    names = move.names
    if any(name not in infos for name in names):
        return None
    pieces = _pieces([infos[name] for name in names])
    if pieces is None:
        return None
    result: dict[str, CarriedTensor] = {}
    for name, rows in move.converted(model, _row_numbers(names, pieces)).items():
        tensor = _carry(names, pieces, rows, tuple(targets[name]))
        if tensor is None:
            return None
        result[name] = tensor
    return result


def _pieces(infos: list[TensorInfo]) -> _Pieces | None:
    """What they have in common; None where it is too little, or rows have no place of their own."""
    first = infos[0]
    alike = {(each.format, each.dtype, each.layout, len(each.shape)) for each in infos}
    fmt = read_bias(first.format)
    if (
        len(alike) > 1
        or of_joined_stack(first.layout)
        or isinstance(fmt, SumInteger)
        or fmt.element.learned
        or len(first.shape) < 2
    ):
        return None
    shapes = tuple(stored_shape(each.shape, each.layout) for each in infos)
    fmt = within_rows(fmt, shapes[0])
    same = all(within_rows(fmt, shape) == fmt and shape[-1] == shapes[0][-1] for shape in shapes)
    if not same or not can_be_cut(fmt) or shapes[0][-1] < 2:
        return None
    sizes = block_sizes(fmt, len(shapes[0]))
    if any(prod(shape[:-2]) > 1 for shape in shapes) and any(
        size != 1 for each in sizes.values() for size in each[:-2]
    ):
        return None  # one scale for several matrices of a stack, which may part
    return _Pieces(first, fmt, shapes, {part: each[-2:] for part, each in sizes.items()})


def _row_numbers(names: Sequence[str], pieces: _Pieces) -> dict[str, Tensor]:
    """{name: the numbers of its rows, in its own shape, with 1 in place of what is summed over}."""
    numbers: dict[str, Tensor] = {}
    start = 0
    for name, shape in zip(names, pieces.shapes, strict=True):
        count = prod(shape[:-1])
        rows = torch.arange(start, start + count, device="cpu").reshape(shape[:-1])
        at = -2 if pieces.info.layout == "transposed" else -1
        numbers[name] = rows.unsqueeze(at)
        for _ in range(len(pieces.info.shape) - len(shape)):  # a convolution's kernel
            numbers[name] = numbers[name].unsqueeze(-1)
        start += count
    return numbers


def _layout(rows: Tensor, shape: tuple[int, ...], pieces: _Pieces) -> str | None:
    """How the result of `shape` is laid out, if it consists of whole rows."""
    if "channels_last" in pieces.info.layout:
        whole = pieces.info.layout == "channels_last" and rows.shape == (
            shape[0],
            *[1] * (len(shape) - 1),
        )
        return "channels_last" if whole else None
    if rows.shape == (*shape[:-1], 1) and shape[-1] == pieces.width:
        return "plain"
    if rows.shape == (*shape[:-2], 1, shape[-1]) and shape[-2] == pieces.width:
        return "transposed"
    return None


def _carry(
    names: Sequence[str], pieces: _Pieces, rows: Tensor, shape: tuple[int, ...]
) -> CarriedTensor | None:
    layout = _layout(rows, shape, pieces)
    if layout is None:
        return None
    stored = stored_shape(shape, layout)
    if stored[-1] != pieces.width:
        return None
    rows = rows.reshape(-1, stored[-2])
    for fmt in _formats(pieces, rows, stored):
        parts = _part_rows(names, pieces, rows, fmt, stored)
        if parts is not None:
            info = TensorInfo(str(fmt), shape, pieces.info.dtype, layout)
            counts = {part: _counts(pieces, part) for part in parts}
            return CarriedTensor(info, parts, counts)
    return None


def _formats(pieces: _Pieces, rows: Tensor, stored: tuple[int, ...]) -> Iterator[Format]:
    """Formats that may describe the result, the plainest first."""
    alone = of_matrix(pieces.fmt, pieces.shapes[0])
    if len(stored) == 2:
        yield alone
    yield pieces.fmt
    sizes = torch.tensor(pieces.matrices, device="cpu")
    owner = torch.arange(len(sizes), device="cpu").repeat_interleave(sizes)
    several = len(owner[rows[0]].unique()) if rows.numel() else 1
    for count in dict.fromkeys((1, several)):
        try:
            yield of_stack(alone, stored, count)
        except ValueError:
            continue


def _part_rows(
    names: Sequence[str], pieces: _Pieces, rows: Tensor, fmt: Format, stored: tuple[int, ...]
) -> dict[str, PartRows] | None:
    """{part: where its rows come from}, if blocks of this format are blocks of the pieces."""
    try:
        shapes = {part: shape for part, (_, shape) in fmt.stored(stored).items()}
        sizes = block_sizes(fmt, len(stored))
    except ValueError:
        return None
    packed = pieces.info.parts()["codes"][1][-1]
    parts = {"codes": PartRows(tuple(names), rows.reshape(-1), (*stored[:-1], packed))}
    for part, own in sizes.items():
        if len(rows) > 1 and any(size != 1 for size in own[:-2]):
            return None
        if _columns(own[-1], pieces.width) != _columns(pieces.sizes[part][-1], pieces.width):
            return None
        entries = _entries(pieces, part)[rows]
        high = own[-2] or rows.shape[1]
        heads = entries[:, ::high]
        if not torch.equal(heads.repeat_interleave(high, 1)[:, : rows.shape[1]], entries):
            return None
        parts[part] = PartRows(tuple(names), heads.reshape(-1), shapes[part])
    return parts


def _columns(size: int, width: int) -> int:
    """How many columns share an entry."""
    return width if size == WHOLE or size > width else size


def _entries(pieces: _Pieces, part: str) -> Tensor:
    """Which row of entries of this part each row of the pieces has, all counted through."""
    entries: list[Tensor] = []
    start, size = 0, pieces.sizes[part][-2]
    for count in pieces.matrices:
        own = torch.arange(count, device="cpu") // (size or max(count, 1))
        entries.append(own + start)
        start += -(-count // (size or max(count, 1)))
    return torch.cat(entries)


def _counts(pieces: _Pieces, part: str) -> tuple[int, ...]:
    """How many rows of this part each piece has."""
    size = 1 if part == "codes" else pieces.sizes[part][-2]
    return tuple(
        prod(shape[:-2]) * (1 if size == WHOLE else -(-shape[-2] // size))
        for shape in pieces.shapes
    )
