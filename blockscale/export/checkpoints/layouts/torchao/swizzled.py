"""Scales in the order of cuBLAS' block scaling, and as matrices again.

Rows are padded to 128 and columns to 4; of each such tile row 32i + j, column k lies at
(16j + 4i + k) (docs.nvidia.com/cuda/cublas, "1D Block Scaling Factors Layout").
"""

import torch
from torch import Tensor

_ROWS, _COLUMNS = 128, 4


def count(rows: int, columns: int) -> int:
    """How many scales are stored for a matrix of so many."""
    return -(-rows // _ROWS) * _ROWS * -(-columns // _COLUMNS) * _COLUMNS


def matrix(stored: Tensor, rows: int, columns: int) -> Tensor:
    """Stored scales of any shape -> [rows, columns]. Raises ValueError for another number."""
    if stored.numel() != count(rows, columns):
        raise ValueError(
            f"it has {stored.numel()} scales in tiles, and {rows} x {columns} take "
            f"{count(rows, columns)}"
        )
    high, wide = -(-rows // _ROWS), -(-columns // _COLUMNS)
    tiles = stored.contiguous().view(torch.uint8).reshape(high, wide, 32, 4, 4)
    whole = tiles.permute(0, 3, 2, 1, 4).reshape(high * _ROWS, wide * _COLUMNS)
    return whole[:rows, :columns].contiguous().view(stored.dtype)
