"""The scale of each block."""

from torch import Tensor

from blockscale.core import reference
from blockscale.kernels.cpu import _native
from blockscale.kernels.cpu.native import addresses, floats, native, threads
from blockscale.kernels.operand import listed
from blockscale.kernels.registry import ByFormats, kernel

every = ByFormats(lambda formats: True)  # noqa: ARG005 - and every dtype, shape and layout


@kernel("choose_qparams", backend="cpu", supports=every)
def choose_qparams(x: Tensor, fmt: str) -> list[Tensor]:
    """As ops.primitives.choose_qparams."""
    n = native(fmt)
    x, dtype = floats(x)
    if x.numel() == 0:
        return listed(reference.choose_qparams(x, n.format))
    parts = n.new_parts(x.shape)
    _native.choose(n.handle, x.shape, x.data_ptr(), dtype, addresses(parts), threads())
    return listed(parts)
