# SPDX-License-Identifier: BSD-3-Clause
"""Values after a round trip, in one pass, and the gradient that passes it."""

import torch
from torch import Tensor

from blockscale.core.operand import Quantizer
from blockscale.core.reference import QParams
from blockscale.kernels.cpu import _native
from blockscale.kernels.cpu.native import (
    DTYPES,
    NO_PARTS,
    Native,
    Parts,
    addresses,
    floats,
    known,
    native,
    seed_words,
    threads,
)
from blockscale.kernels.operand import strided_like
from blockscale.kernels.registry import kernel


@kernel("fake_quantize", backend="cpu", supports=known)
def fake_quantize(x: Tensor, by: Quantizer) -> Tensor:
    """As ops.primitives.fake_quantize."""
    n = native(by.fmt)
    like = x
    x, dtype = floats(x)
    parts, at = _given(n, x, by)
    values = torch.empty_like(x)
    if x.numel():
        _native.fake_quantize(
            n.handle, x.shape, x.data_ptr(), dtype, parts is not None, at, values.data_ptr(),
            *seed_words(n, by.seed), threads(),
        )  # fmt: skip
    return strided_like(like, values)


@kernel("straight_through", backend="cpu", supports=known)
def straight_through(gradient: Tensor, x: Tensor, by: Quantizer) -> Tensor:
    """As ops.primitives.straight_through."""
    n = native(by.fmt)
    like = gradient
    if gradient.shape != x.shape:
        raise ValueError(
            f"expected a gradient of shape {tuple(x.shape)}, found {tuple(gradient.shape)}"
        )
    if gradient.dtype not in DTYPES:
        ones = torch.ones(x.shape, dtype=torch.float32)
        passes = straight_through(ones, x, by)
        return torch.where(passes != 0, gradient, 0.0)
    x, dtype = floats(x)
    gradient, kind = floats(gradient)
    parts, at = _given(n, x, by)
    kept = torch.empty_like(gradient)
    if x.numel():
        _native.straight_through(
            n.handle, x.shape, x.data_ptr(), dtype, parts is not None, at, gradient.data_ptr(),
            kind, kept.data_ptr(), threads(),
        )  # fmt: skip
    return strided_like(like, kept)


def _given(n: Native, x: Tensor, by: Quantizer) -> tuple[QParams | None, Parts]:
    """The given parts, to be kept alive, and their addresses."""
    if by.scale is None:
        n.scale_shape(x.shape)  # raises if the block does not fit
        return None, NO_PARTS
    parts = n.checked_parts(x.shape, by.scale, by.zero_point, by.outer, more=by.more)
    return parts, addresses(parts)
