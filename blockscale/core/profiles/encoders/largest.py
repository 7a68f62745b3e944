# SPDX-License-Identifier: BSD-3-Clause
"""The number of largest magnitude, with its sign: what ggml's and other searches begin with."""

import torch
from torch import Tensor


def first_largest(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [n, ...] -> the first number of largest magnitude along dimension 0, and that magnitude."""
    size = x.abs()
    largest = size.amax(0)
    places = torch.arange(x.shape[0], device=x.device).reshape(-1, *[1] * (x.ndim - 1))
    there = torch.where(size == largest, places, x.shape[0]).amin(0)
    return x.gather(0, there.unsqueeze(0)).squeeze(0), largest
