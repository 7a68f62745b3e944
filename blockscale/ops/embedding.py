"""Rows of a quantized table; only the rows asked for are dequantized."""

import torch
from torch import Tensor

from blockscale.core import pack as packing
from blockscale.core import reference
from blockscale.core.block import WHOLE
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.ops.op import not_differentiable, op


def _shape(
    weight: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    outer: Tensor | None,
    fmt: str,
    size: int,
    indices: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    del scale, zero_point, outer, fmt
    return weight.new_empty((*indices.shape, size), dtype=dtype)


@op(shape=_shape)
def embedding(
    weight: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    outer: Tensor | None,
    fmt: str,
    size: int,
    indices: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """Packed codes [rows, packed_size(size)], indices [...] of rows -> [..., size] of `dtype`."""
    form = parse(fmt)
    rows = indices.reshape(-1)
    codes = packing.unpack(weight.index_select(0, rows), form.element, (rows.shape[0], size))
    height, width = form.block.sizes_for(2)
    scale_rows = torch.zeros_like(rows) if height == WHOLE else rows // height

    def per_element(parts: Tensor) -> Tensor:
        """A number for each block -> one that broadcasts with the chosen rows."""
        chosen = parts.index_select(0, scale_rows)
        return chosen.repeat_interleave(width, 1)[:, :size] if width > 1 else chosen

    values = form.element.decode(codes)
    if zero_point is not None:
        values = values - per_element(zero_point.to(torch.float32))
    step = reference.step_of(QParams(scale, outer, zero_point), form)
    return (values * per_element(step)).to(dtype).reshape(*indices.shape, size)


not_differentiable(embedding, "its codes are fixed; train the float model with fake quantization")
