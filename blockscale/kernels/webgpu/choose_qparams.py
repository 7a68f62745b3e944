# SPDX-License-Identifier: BSD-3-Clause
"""The scale of each block."""

from torch import Tensor

from blockscale.core import reference
from blockscale.kernels.registry import kernel
from blockscale.kernels.webgpu.primitives.choose import choose
from blockscale.kernels.webgpu.primitives.form import floats, form
from blockscale.kernels.webgpu.primitives.parts import listed, returned
from blockscale.kernels.webgpu.spec import known


@kernel("choose_qparams", backend="webgpu", supports=known)
def choose_qparams(x: Tensor, fmt: str) -> list[Tensor]:
    """As ops.primitives.choose_qparams."""
    f, shape = form(fmt), tuple(x.shape)
    f.scale_shape(shape)  # raises if the block does not fit
    if x.numel() == 0:
        return listed(reference.choose_qparams(x.cpu(), f.format), x)
    return returned(f, choose(f, floats(x), x.dtype, shape), shape, x)
