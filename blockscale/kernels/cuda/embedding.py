"""Rows of a quantized table: their codes and scales are gathered, then dequantized."""

from typing import Any

import torch
from torch import Tensor

from blockscale.core.block import WHOLE
from blockscale.core.format import Format
from blockscale.core.scale import TwoLevel
from blockscale.kernels.cuda.dequantize import dequantize
from blockscale.kernels.cuda.primitives.form import form
from blockscale.kernels.cuda.replay.replay import replayed
from blockscale.kernels.registry import kernel


def by_rows(fmt: Format, arguments: tuple[Any, ...]) -> bool:
    """Whether each row has scales of its own, or all rows have the same."""
    del arguments
    if isinstance(fmt.scale, TwoLevel) and fmt.scale.inner.block.name != "tensor":
        return False
    return fmt.block.sizes_for(2)[0] in (1, WHOLE)


@kernel("embedding", backend="cuda", supports=by_rows)
@replayed()
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
    """As ops.embedding.embedding."""
    f, shape = form(fmt), (weight.shape[0], size)
    codes = f.checked_codes(weight, shape)
    f.given_parts(codes, shape, scale, zero_point, outer)
    rows = indices.reshape(-1)
    if f.format.block.sizes_for(2)[0] == 1:
        scale = scale.index_select(0, rows)
        zero_point = None if zero_point is None else zero_point.index_select(0, rows)
    values = dequantize(codes.index_select(0, rows), scale, zero_point, outer, fmt, size, dtype)
    return values.reshape(*indices.shape, size)
