# SPDX-License-Identifier: BSD-3-Clause
"""Seeds of stochastic rounding, as people give them and as ops take them."""

from collections.abc import Sequence
from numbers import Integral

import torch
from torch import Tensor

Seed = int | Sequence[int] | Tensor | None


def seed_tensor(seed: Seed, device: torch.device) -> Tensor:
    """A seed, or (seed, index of the first element), as the ops take it: int64 on the device.

    None draws one from torch's default generator, so torch.manual_seed makes it reproducible.
    """
    if seed is None:
        return torch.randint(2**63 - 1, (), dtype=torch.int64, device=device)
    if isinstance(seed, list | tuple) and len(seed) == 2:
        return torch.tensor([int(word) for word in seed], dtype=torch.int64, device=device)
    if isinstance(seed, Integral) and not isinstance(seed, bool):
        seed = int(seed)  # numpy's integers, too
    if not isinstance(seed, int | Tensor) or isinstance(seed, bool):
        raise TypeError(
            "seed must be an int, (seed, index of the first element), an int64 tensor or "
            f"None, got {seed!r}"
        )
    if isinstance(seed, int):
        if not -(2**63) <= seed < 2**63:
            raise ValueError(f"seed must fit in 64 bits, got {seed}")
        return torch.tensor(seed, dtype=torch.int64, device=device)
    if seed.dtype != torch.int64 or tuple(seed.shape) not in ((), (2,)):
        raise ValueError(
            "a seed tensor must be int64 of shape [] (the seed) or [2] (the seed, the index "
            f"of the first element), found {seed.dtype} {tuple(seed.shape)}"
        )
    return seed
