# SPDX-License-Identifier: BSD-3-Clause
"""Formats that the CUDA kernels know only restated."""

import torch
from torch import Tensor

from blockscale.kernels.restated_ops import register


def fingerprint(part: Tensor) -> int:
    """A number that changes with a tensor's bytes and their order."""
    data = part.contiguous().view(torch.uint8).flatten().to(torch.int64)
    place = torch.arange(1, data.numel() + 1, device=data.device)
    return int((data * (2 * place * place + 1)).sum())


OPS = register("cuda", fingerprint)
