"""Values after a round trip, in one pass, and the gradient that passes it."""

import torch
from torch import Tensor

from blockscale.core.reference import QParams
from blockscale.kernels.cpu import _native
from blockscale.kernels.cpu.choose_qparams import every
from blockscale.kernels.cpu.native import (
    DTYPES,
    Native,
    Parts,
    addresses,
    floats,
    native,
    seed_words,
    threads,
)
from blockscale.kernels.operand import strided_like
from blockscale.kernels.registry import kernel


@kernel("fake_quantize", backend="cpu", supports=every)
def fake_quantize(
    x: Tensor,
    scale: Tensor | None,
    zero_point: Tensor | None,
    outer: Tensor | None,
    fmt: str,
    seed: Tensor | None,
) -> Tensor:
    """As ops.primitives.fake_quantize."""
    n = native(fmt)
    like = x
    x, dtype = floats(x)
    parts, at = _given(n, x, scale, zero_point, outer)
    values = torch.empty_like(x)
    if x.numel():
        _native.fake_quantize(
            n.handle, x.shape, x.data_ptr(), dtype, parts is not None, at, values.data_ptr(),
            *seed_words(n, seed), threads(),
        )  # fmt: skip
    return strided_like(like, values)


@kernel("straight_through", backend="cpu", supports=every)
def straight_through(
    gradient: Tensor,
    x: Tensor,
    scale: Tensor | None,
    zero_point: Tensor | None,
    outer: Tensor | None,
    fmt: str,
) -> Tensor:
    """As ops.primitives.straight_through."""
    n = native(fmt)
    like = gradient
    if gradient.shape != x.shape:
        raise ValueError(
            f"expected a gradient of shape {tuple(x.shape)}, found {tuple(gradient.shape)}"
        )
    if gradient.dtype not in DTYPES:
        ones = torch.ones(x.shape, dtype=torch.float32)
        passes = straight_through(ones, x, scale, zero_point, outer, fmt)
        return torch.where(passes != 0, gradient, 0.0)
    x, dtype = floats(x)
    gradient, kind = floats(gradient)
    parts, at = _given(n, x, scale, zero_point, outer)
    kept = torch.empty_like(gradient)
    if x.numel():
        _native.straight_through(
            n.handle, x.shape, x.data_ptr(), dtype, parts is not None, at, gradient.data_ptr(),
            kind, kept.data_ptr(), threads(),
        )  # fmt: skip
    return strided_like(like, kept)


def _given(
    n: Native, x: Tensor, scale: Tensor | None, zero_point: Tensor | None, outer: Tensor | None
) -> tuple[QParams | None, Parts]:
    """The given parts, to be kept alive, and their addresses."""
    if scale is None:
        n.scale_shape(x.shape)  # raises if the block does not fit
        return None, (0, 0, 0)
    parts = n.checked_parts(x.shape, scale, zero_point, outer)
    return parts, addresses(parts)
