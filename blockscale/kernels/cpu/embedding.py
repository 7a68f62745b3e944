# SPDX-License-Identifier: BSD-3-Clause
"""Rows of a quantized table."""

import torch
from torch import Tensor

from blockscale.core.operand import Operand
from blockscale.kernels.cpu import _native
from blockscale.kernels.cpu.native import DTYPES, addresses, known, native, threads
from blockscale.kernels.operand import in_order
from blockscale.kernels.registry import kernel


@kernel("embedding", backend="cpu", supports=known)
def embedding(weight: Operand, indices: Tensor, dtype: torch.dtype) -> Tensor:
    """As ops.embedding.embedding. Raises IndexError for an index that is no row."""
    n, size = native(weight.fmt), weight.size
    table = (weight.codes.shape[0], size)
    codes = n.checked_codes(weight.codes, table)
    parts = n.checked_parts(table, weight.scale, weight.zero_point, weight.outer, more=weight.more)
    if indices.dtype not in (torch.int64, torch.int32) or not indices.is_cpu:
        raise IndexError(
            f"expected int64 or int32 indices on the CPU, found {indices.dtype} on {indices.device}"
        )
    rows = in_order(indices.to(torch.int64))
    kind = DTYPES.get(dtype, 0)
    shape = (*indices.shape, size)
    values = torch.empty(shape, dtype=dtype if dtype in DTYPES else torch.float32)
    if rows.numel() and not _native.embedding(
        n.handle, *table, codes.data_ptr(), addresses(parts), rows.data_ptr(), rows.numel(),
        values.data_ptr(), kind, threads(),
    ):  # fmt: skip
        low, high = int(rows.min()), int(rows.max())
        raise IndexError(
            f"index out of range: found {low} ... {high} for a table of {table[0]} rows"
        )
    return values if values.dtype == dtype else values.to(dtype)
