"""Rows of a quantized table; only the rows asked for are dequantized."""

import torch
from torch import Tensor

from blockscale.core import pack as packing
from blockscale.core import reference, zero_point
from blockscale.core.block import WHOLE
from blockscale.core.operand import Operand
from blockscale.ops.gradient import not_differentiable
from blockscale.ops.op import op


def _shape(weight: Operand, indices: Tensor, dtype: torch.dtype) -> Tensor:
    return weight.codes.new_empty((*indices.shape, weight.size), dtype=dtype)


@op(shape=_shape)
def embedding(weight: Operand, indices: Tensor, dtype: torch.dtype) -> Tensor:
    """A table [rows, size], indices [...] of rows -> [..., size] of `dtype`."""
    form, size = weight.format, weight.size
    rows = indices.reshape(-1)
    codes = packing.unpack(weight.codes.index_select(0, rows), form.element, (rows.shape[0], size))
    height, width = form.block.sizes_for(2)
    scale_rows = torch.zeros_like(rows) if height == WHOLE else rows // height

    def per_element(parts: Tensor) -> Tensor:
        """A number for each block -> one that broadcasts with the chosen rows."""
        chosen = parts.index_select(0, scale_rows)
        return chosen.repeat_interleave(width, 1)[:, :size] if width > 1 else chosen

    values = form.element.decode(codes)
    if weight.zero_point is not None:
        values = values - per_element(weight.zero_point.to(torch.float32))
    qparams, table = weight.qparams, torch.Size((weight.codes.shape[0], size))
    values = values * per_element(reference.step_of(qparams, form))
    offset = zero_point.expand_offset(qparams.offset, qparams.offset_outer, form, table)
    if offset is not None:
        values = values + offset.expand(table).index_select(0, rows)
    return values.to(dtype).reshape(*indices.shape, size)


not_differentiable(embedding, "its codes are fixed; train the float model with fake quantization")
