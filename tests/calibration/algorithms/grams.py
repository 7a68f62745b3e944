# SPDX-License-Identifier: BSD-3-Clause
"""Gram matrices to test with."""

import torch
from torch import Tensor


def gram_of(k: int, rows: int = 200, power: float = 1.0) -> Tensor:
    """The gram matrix [k, k] float64 of correlated inputs."""
    x = torch.randn(rows, k, dtype=torch.float64) @ torch.randn(k, k, dtype=torch.float64)
    x = x * torch.logspace(0, power, k, dtype=torch.float64)[torch.randperm(k)]
    return x.T @ x / rows
