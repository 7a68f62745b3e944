# SPDX-License-Identifier: BSD-3-Clause
"""Several tensors become one: each may have a format of its own."""

import torch
from torch import Tensor

from blockscale.ops.fused.define import fused


@fused(aten=("cat.default", "concat.default", "concatenate.default"))
def cat(tensors: list[Tensor], *, dim: int = 0) -> Tensor:
    """Tensors one behind the other along a dimension.

    Tensors [...] of one size but along `dim` -> all of them.
    """
    return torch.cat(tensors, dim)


@fused(aten=("stack.default",))
def stack(tensors: list[Tensor], *, dim: int = 0) -> Tensor:
    """Tensors beside each other along a new dimension.

    Tensors [...] of one size -> all of them, along a dimension that is new.
    """
    return torch.stack(tensors, dim)
