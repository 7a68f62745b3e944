# SPDX-License-Identifier: BSD-3-Clause
"""Whether two tensors are the same to the bit, wherever they are."""

import torch
from torch import Tensor

WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(x: Tensor) -> Tensor:
    """A tensor's bits as integers, every NaN alike: its payload is not part of the contract."""
    if not x.is_floating_point():
        return x
    plain = torch.where(x.isnan(), torch.full((), torch.nan, dtype=x.dtype), x)
    return plain.contiguous().view(WORDS[x.itemsize])


def same(a: Tensor, b: Tensor) -> bool:
    """Equal in dtype, shape, strides and bits."""
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and strides(a) == strides(b)
        and _equal(a.cpu(), b.cpu())
    )


def _equal(a: Tensor, b: Tensor) -> bool:
    """At once where the payloads of NaN are the same, too."""
    if a.is_floating_point() and torch.equal(*(x.view(WORDS[x.itemsize]) for x in (a, b))):
        return True
    return torch.equal(bits(a), bits(b))


def strides(x: Tensor) -> list[int]:
    """Those that matter: of dimensions with more than one entry."""
    return [s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1] if x.numel() else []
