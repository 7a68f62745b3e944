# SPDX-License-Identifier: BSD-3-Clause
"""The scale of each block."""

from torch import Tensor

from blockscale.core import reference
from blockscale.kernels.cpu import _native
from blockscale.kernels.cpu.native import addresses, floats, known, native, threads
from blockscale.kernels.operand import listed
from blockscale.kernels.registry import kernel


@kernel("choose_qparams", backend="cpu", supports=known)
def choose_qparams(x: Tensor, fmt: str) -> list[Tensor]:
    """As ops.primitives.choose_qparams."""
    n = native(fmt)
    x, dtype = floats(x)
    if x.numel() == 0:
        return listed(reference.choose_qparams(x, n.format))
    parts = n.new_parts(x.shape)
    _native.choose(n.handle, x.shape, x.data_ptr(), dtype, addresses(parts), threads())
    return listed(parts)
