# SPDX-License-Identifier: BSD-3-Clause
"""The five kinds of numbers on which producers differ from each other (research: checkpoints)."""

import torch
from torch import Tensor

ROWS, COLUMNS = 64, 256


def normal() -> Tensor:
    return torch.randn(ROWS, COLUMNS)


def wide_rows() -> Tensor:
    """Rows over 2^-14 ... 2^12."""
    return torch.randn(ROWS, COLUMNS) * torch.linspace(-14, 12, ROWS).exp2()[:, None]


def mixed() -> Tensor:
    """Zeros, constants of either sign, outliers, rows without negative or positive numbers."""
    x = torch.randn(ROWS, COLUMNS)
    x[0], x[1], x[2], x[3] = 0.0, 0.5, -3.0, -0.0
    x[4], x[5] = x[4].abs(), -x[5].abs()
    x[6, ::3], x[7, 5], x[8, ::2] = 0.0, 1000.0, -0.0
    x[9, 32:64], x[10, :40] = 0.0, -1e-30
    x[11] = torch.where(torch.arange(COLUMNS) % 2 == 0, 2.0, -2.0)
    return x


def ties() -> Tensor:
    """Rows of halves and quarters with ends that make steps powers of two in many formats."""
    x = torch.randint(-510, 511, (ROWS, COLUMNS)) / 4
    x[:, 0] = torch.tensor([127.5, -127.5, 127.0, 7.5, -7.5, 448.0, 6.0, 12.0]).repeat(ROWS // 8)
    x[ROWS // 2 :, 1:] = x[ROWS // 2 :, 1:].clamp(-6, 6)
    return x


def tiny() -> Tensor:
    """Rows over 2^-34 ... 2^-18."""
    return torch.randn(ROWS, COLUMNS) * torch.linspace(-34, -18, ROWS).exp2()[:, None]


KINDS = {each.__name__: each for each in (normal, wide_rows, mixed, ties, tiny)}


def some_rows(kind: str, columns: int = COLUMNS) -> Tensor:
    """Twelve rows [12, columns] of a kind: the odd ones of `mixed`, of others from end to end."""
    x = KINDS[kind]()
    return (x[:12] if kind == "mixed" else x[:: ROWS // 11][:12])[:, :columns].contiguous()
