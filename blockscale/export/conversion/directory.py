# SPDX-License-Identifier: BSD-3-Clause
"""A directory of safetensors files that is written a tensor at a time, each in its place."""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from blockscale.core import stacks
from blockscale.core.cuts import block_sizes, can_be_cut
from blockscale.core.format import Format
from blockscale.export.writers import PlannedTensor, Writer
from blockscale.files.directory.model_files import CONFIG
from blockscale.files.header import StoredTensor, lay_out, tensor_of
from blockscale.files.slabs.cutting import cut_slabs as cut_into_slabs
from blockscale.files.slabs.cutting import join
from blockscale.files.stored_model import INDEX, SINGLE
from blockscale.files.stream import StreamWriter as File
from blockscale.ops import primitives
from blockscale.ops.quantize import quantize
from blockscale.ops.tensor import QTensor

# Quantized tensors dequantized, and quantized again, some rows at a time: numbers stay in the
# cache, and no float copy of a whole tensor is made.

SLAB = 1 << 18  # elements of a slab
_TILE = 128  # rows after which tiles of weights end


def rows_of_slab(shape: tuple[int, ...]) -> int:
    """How many rows a slab has; tiles end with them."""
    row = max(1, torch.Size(shape).numel() // max(shape[0] if shape else 1, 1))
    rows = max(1, SLAB // row)
    return rows + -rows % _TILE


def dequantized(value: QTensor | Tensor, rows: int) -> Iterator[Tensor]:
    """float32 values, `rows` at a time of the first dimension; those of rank 0 as [1]."""
    if isinstance(value, Tensor):
        value = value if value.ndim else value.reshape(1)
        for start in range(0, value.shape[0], rows):
            yield value[start : start + rows].to(torch.float32)
        return
    whole: Tensor | None = None
    count = value.shape[0] if value.shape else 1
    for start in range(0, count, rows):
        stop = min(start + rows, count)
        part = stacks.rows_of(value.operand, start, stop) if whole is None else None
        if part is None:  # such as blocks that run over rows
            whole = value.dequantize() if whole is None else whole
            yield whole[start:stop]
        else:
            yield primitives.dequantize(part, torch.float32)


def requantized(value: QTensor, target: Format) -> QTensor:
    """quantize(value.dequantize(), wanted): the same codes and scales."""
    shape = tuple(value.shape)
    rows = _rows_to_quantize(shape, target)
    if rows is None:
        return quantize(value.dequantize(), target)
    results = [quantize(slab, target) for slab in dequantized(value, rows)]
    packed = torch.cat([each.packed for each in results])
    return QTensor(packed, join(each.qparams for each in results), target, value.size)


def _rows_to_quantize(shape: tuple[int, ...], target: Format) -> int | None:
    """Rows of slabs that choose the same scales as the whole would; None where there are none."""
    if len(shape) < 2 or not can_be_cut(target) or target.rounding == "stochastic":
        return None
    if target.element.learned or not shape[0]:
        return None
    blocks = block_sizes(target, len(shape)).values()
    cuts = cut_into_slabs(shape, [*blocks, (_TILE,) + (1,) * (len(shape) - 1)], SLAB)
    if cuts.dim or any(cuts.spans(sizes) for sizes in blocks):
        return None
    return cuts.rows


SHARD = 5_000_000_000  # bytes, as transformers splits


class Directory:
    """Files of a model. `write` each tensor once; `close` ends it."""

    def __init__(
        self,
        folder: Path,
        writer: Writer,
        tensors: Sequence[PlannedTensor],
        config: dict[str, Any],
        others: Sequence[Path] = (),
        size: int | None = None,
    ):
        """Lay out the files, write what is known beforehand, and reserve the space.

        size: bytes of a file, by default SHARD. Raises ValueError for two tensors of one name.
        """
        self._writer, self._stack = writer, ExitStack()
        self._files: dict[str, File] = {}
        for other in others:
            shutil.copyfile(other, folder / other.name)
        info = writer.config(tensors, config)
        texts = ({CONFIG: info} if info else {}) | writer.more_files(tensors)
        for name, text in texts.items():
            (folder / name).write_text(json.dumps(text, indent=2) + "\n")
        shards = _shards(writer, tensors, size or SHARD)
        where: dict[str, str] = {}
        try:
            for i, shard in enumerate(shards):
                name = _name(i, len(shards))
                names = {t.name for t, _ in shard}
                message = writer.metadata([t for t in tensors if t.name in names])
                specs = {key: spec for _, parts in shard for key, spec in parts.items()}
                header, places = lay_out(specs, message)
                file = self._stack.enter_context(File(folder / name, header, places))
                self._files |= dict.fromkeys(specs, file)
                where |= dict.fromkeys(specs, name)
        except BaseException:
            self._stack.close()
            raise
        if len(shards) > 1:
            total = sum(s.nbytes for shard in shards for _, parts in shard for s in parts.values())
            index = {"metadata": {"total_size": total}, "weight_map": where}
            (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")

    def write(self, name: str, value: QTensor | Tensor) -> None:
        """One tensor of the plan."""
        if isinstance(value, Tensor):
            parts = {self._writer.plain_name(name): value}
        else:
            parts = self._writer.store(name, value)
        for key, part in parts.items():
            self._files[key].rows(key, 0, part)

    def close(self) -> None:
        """Write everything to the disk, and close the files."""
        for file in dict.fromkeys(self._files.values()):
            file.sync()
        self._stack.close()

    def abandon(self) -> None:
        """Close the files."""
        self._stack.close()


def _name(i: int, count: int) -> str:
    return SINGLE if count == 1 else f"model-{i + 1:05}-of-{count:05}.safetensors"


def _shards(
    writer: Writer, tensors: Sequence[PlannedTensor], size: int
) -> list[list[tuple[PlannedTensor, dict[str, StoredTensor]]]]:
    shards: list[list[tuple[PlannedTensor, dict[str, StoredTensor]]]] = [[]]
    owners: dict[str, str] = {}
    shard_bytes = 0
    for tensor in tensors:
        parts = {key: tensor_of(*kind) for key, kind in _kinds(writer, tensor).items()}
        nbytes = sum(part.nbytes for part in parts.values())
        if shards[-1] and shard_bytes + nbytes > size:
            shards.append([])
            shard_bytes = 0
        shards[-1].append((tensor, parts))
        shard_bytes += nbytes
        for key in parts:
            if key in owners:
                raise ValueError(f"{tensor.name} and {owners[key]} would both be stored as {key}")
            owners[key] = tensor.name
    return shards


def _kinds(writer: Writer, tensor: PlannedTensor) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    if tensor.format is None:
        return {writer.plain_name(tensor.name): (tensor.dtype, tensor.shape)}
    return writer.parts(tensor.name, tensor.format, tensor.shape)
