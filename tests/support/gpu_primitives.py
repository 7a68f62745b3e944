# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with tests/gpu/test_primitives.py: `graded`."""

import torch
from torch import Tensor


def graded(dtype: torch.dtype) -> Tensor:
    """Each number of 8 significant bits within 2^-14 of its block's largest, of both signs."""
    fractions = torch.arange(128) / 128 + 1
    values = (fractions * 2.0 ** -torch.arange(15.0)[:, None]).flatten()
    values = torch.cat([values, -values, torch.zeros(4)]).reshape(-1, 31)
    blocks = torch.cat([torch.full((len(values), 1), 1.9921875), values], 1)
    powers = (0, 13) if dtype == torch.float16 else (-110, 0, 1, 120)
    return torch.cat([blocks * 2.0**power for power in powers]).to(dtype).repeat(1, 2)
