# SPDX-License-Identifier: BSD-3-Clause
"""The scale of each block."""

from torch import Tensor

from blockscale.core import reference
from blockscale.kernels.cuda.primitives.form import floats, form
from blockscale.kernels.cuda.primitives.launch import choose
from blockscale.kernels.cuda.replay.replay import replayed
from blockscale.kernels.cuda.spec import known
from blockscale.kernels.operand import listed
from blockscale.kernels.registry import kernel


@kernel("choose_qparams", backend="cuda", supports=known)
@replayed()
def choose_qparams(x: Tensor, fmt: str) -> list[Tensor]:
    """As ops.primitives.choose_qparams."""
    f = form(fmt)
    x = floats(x)
    if x.numel() == 0:
        return listed(reference.choose_qparams(x, f.format))
    return listed(choose(f, x))
