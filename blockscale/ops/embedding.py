# SPDX-License-Identifier: BSD-3-Clause
"""Rows of a quantized table; only the rows asked for are dequantized."""

import torch
from torch import Tensor

from blockscale.core import pack as packing
from blockscale.core import reference
from blockscale.core.block import WHOLE, Block, repeated
from blockscale.core.elements.int_float import IntFloat
from blockscale.core.operand import Operand
from blockscale.ops.gradient import not_differentiable
from blockscale.ops.op import op
from blockscale.ops.primitives import dequantize


def _shape(weight: Operand, indices: Tensor, dtype: torch.dtype) -> Tensor:
    return weight.codes.new_empty((*indices.shape, weight.size), dtype=dtype)


@op(shape=_shape)
def embedding(weight: Operand, indices: Tensor, dtype: torch.dtype) -> Tensor:
    """A table [rows, size], indices [...] of rows -> [..., size] of `dtype`."""
    form, size = weight.format, weight.size
    rows, qparams = indices.reshape(-1), weight.qparams
    shape = (*indices.shape, size)
    if form.block.flat or (form.offset is not None and (form.offset.block or form.block).flat):
        table: Tensor = dequantize.reference(weight, dtype)
        return table.index_select(0, rows).reshape(shape)
    codes = packing.unpack(weight.codes.index_select(0, rows), form.element, (rows.shape[0], size))

    def per_element(parts: Tensor, block: Block) -> Tensor:
        """A number for each block -> one that broadcasts with the chosen rows."""
        height, width = block.sizes_for(2)
        choice = parts.index_select(
            0, torch.zeros_like(rows) if height == WHOLE else rows // height
        )
        return repeated(choice, width, 1, size) if width > 1 else choice

    steps = per_element(reference.step_of(qparams, form), form.block)
    element = form.element.with_book(qparams.book)
    if isinstance(element, IntFloat):
        element = element.bound(steps.signbit())
    values = element.decode(codes)
    if qparams.zero_point is not None:
        values = values - per_element(qparams.zero_point.to(torch.float32), form.block)
    values = values * steps
    if form.offset is not None and qparams.offset is not None:
        offset = form.offset.value(qparams.offset, qparams.offset_outer)
        values = values + per_element(offset, form.offset.block or form.block)
    return values.to(dtype).reshape(shape)


not_differentiable(embedding, "its codes are fixed; train the float model with fake quantization")
