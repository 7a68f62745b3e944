# SPDX-License-Identifier: BSD-3-Clause
"""Rows of a quantized table: their codes and scales are gathered, then dequantized."""

import torch
from torch import Tensor

from blockscale.core.block import WHOLE
from blockscale.core.operand import Operand
from blockscale.core.scales import TwoLevel
from blockscale.kernels.cuda.dequantize import dequantize
from blockscale.kernels.cuda.primitives.form import form
from blockscale.kernels.cuda.replay.replay import replayed
from blockscale.kernels.cuda.spec import known
from blockscale.kernels.registry import ByFormats, Formats, kernel


def by_rows(formats: Formats) -> bool:
    """Whether each row has scales of its own, or all rows have the same, of known elements."""
    (fmt,) = formats
    if not known(formats, ()):
        return False
    if isinstance(fmt.scale, TwoLevel) and fmt.scale.inner.block.name != "tensor":
        return False
    return fmt.block.sizes_for(2)[0] in (1, WHOLE)


@kernel("embedding", backend="cuda", supports=ByFormats(by_rows))
@replayed()
def embedding(weight: Operand, indices: Tensor, dtype: torch.dtype) -> Tensor:
    """As ops.embedding.embedding."""
    f, shape = form(weight.fmt), (weight.codes.shape[0], weight.size)
    codes = f.checked_codes(weight.codes, shape)
    scale, zero_point = weight.scale, weight.zero_point
    more = weight.more
    f.given_parts(codes, shape, scale, zero_point, weight.outer, more)
    rows = indices.reshape(-1)
    if f.format.block.sizes_for(2)[0] == 1:
        scale = scale.index_select(0, rows)
        zero_point = None if zero_point is None else zero_point.index_select(0, rows)
        more = None if more is None else [part.index_select(0, rows) for part in more]
    codes = codes.index_select(0, rows)
    chosen = weight._replace(codes=codes, scale=scale, zero_point=zero_point, more=more)
    return dequantize(chosen, dtype).reshape(*indices.shape, weight.size)
