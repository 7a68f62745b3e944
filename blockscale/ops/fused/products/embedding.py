"""Rows of a table."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core.operand import Value
from blockscale.ops.embedding import embedding as rows_of
from blockscale.ops.fused.define import fused


def _floats(weight: Value, *, dtype: torch.dtype, indices: Tensor) -> Tensor:
    """Only the rows that are asked for are dequantized."""
    if not weight.fmt:
        return F.embedding(indices, weight.data)
    rows: Tensor = rows_of.run(weight.operand, indices, dtype)
    return rows


def _shape(weight: Tensor, *, indices: Tensor) -> tuple[Any, ...]:
    return (*indices.shape, weight.shape[1])


@fused(aten=("embedding.default weight indices * * *",), shape=_shape, floats=_floats)
def embedding(weight: Tensor, *, indices: Tensor) -> Tensor:
    """A table [rows, n], indices [...] -> [..., n]."""
    return F.embedding(indices, weight)
