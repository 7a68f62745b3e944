# SPDX-License-Identifier: BSD-3-Clause
"""Quantized tensors dequantized, and quantized again, some rows at a time: numbers stay in the
cache, and no float copy of a whole tensor is made."""

from collections.abc import Iterator

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.files.slabs.cutting import block_sizes, can_be_cut, joined
from blockscale.files.slabs.cutting import cut as cut_into_slabs
from blockscale.ops import primitives
from blockscale.ops.pieces import cut
from blockscale.ops.quantize import quantize
from blockscale.ops.tensor import QTensor

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
        part = cut.rows(value.operand, start, stop) if whole is None else None
        if part is None:  # such as blocks that run over rows
            whole = value.dequantize() if whole is None else whole
            yield whole[start:stop]
        else:
            yield primitives.dequantize(part, torch.float32)


def requantized(value: QTensor, wanted: Format) -> QTensor:
    """quantize(value.dequantize(), wanted): the same codes and scales."""
    shape = tuple(value.shape)
    rows = _rows_to_quantize(shape, wanted)
    if rows is None:
        return quantize(value.dequantize(), wanted)
    made = [quantize(slab, wanted) for slab in dequantized(value, rows)]
    packed = torch.cat([each.packed for each in made])
    return QTensor(packed, joined(each.qparams for each in made), wanted, value.size)


def _rows_to_quantize(shape: tuple[int, ...], wanted: Format) -> int | None:
    """Rows of slabs that choose the same scales as the whole would; None where there are none."""
    if len(shape) < 2 or not can_be_cut(wanted) or wanted.rounding == "stochastic":
        return None
    if wanted.element.learned or not shape[0]:
        return None
    blocks = block_sizes(wanted, len(shape)).values()
    cuts = cut_into_slabs(shape, [*blocks, (_TILE,) + (1,) * (len(shape) - 1)], SLAB)
    if cuts.dim or any(cuts.spans(sizes) for sizes in blocks):
        return None
    return cuts.rows
