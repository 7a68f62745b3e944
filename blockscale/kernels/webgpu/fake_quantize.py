# SPDX-License-Identifier: BSD-3-Clause
"""Values after a round trip, and the gradient that passes it."""

import torch
from torch import Tensor

from blockscale.core.operand import Quantizer
from blockscale.core.reference import FLOATS
from blockscale.kernels.operand import strided_like
from blockscale.kernels.registry import kernel
from blockscale.kernels.webgpu.primitives import choose_encode
from blockscale.kernels.webgpu.primitives.choose import choose
from blockscale.kernels.webgpu.primitives.encode import passing, seed_memory, values
from blockscale.kernels.webgpu.primitives.form import Form, back, floats, form, memory_of, moved
from blockscale.kernels.webgpu.primitives.parts import Parts, given_parts
from blockscale.kernels.webgpu.spec import known


@kernel("fake_quantize", backend="webgpu", supports=known)
def fake_quantize(x: Tensor, by: Quantizer) -> Tensor:
    """As ops.primitives.fake_quantize."""
    f, shape = form(by.fmt), tuple(x.shape)
    given = _given(f, x, by)
    memory = floats(x)
    if x.numel() == 0:
        seed_memory(f, by.seed)  # raises if it is missing
        return strided_like(x, moved(torch.empty(shape, dtype=x.dtype), x))
    if given is None:
        made = choose_encode.values(f, memory, x.dtype, shape, by.seed)
    else:
        made = values(f, memory, x.dtype, shape, given, seed_memory(f, by.seed))
    return strided_like(x, back(made, shape, x.dtype, x))


@kernel("straight_through", backend="webgpu", supports=known)
def straight_through(gradient: Tensor, x: Tensor, by: Quantizer) -> Tensor:
    """As ops.primitives.straight_through."""
    f, shape = form(by.fmt), tuple(x.shape)
    if gradient.shape != x.shape:
        raise ValueError(f"expected a gradient of shape {shape}, found {tuple(gradient.shape)}")
    if gradient.dtype not in FLOATS:
        ones = moved(torch.ones(shape), x)
        kept = torch.where(straight_through(ones, x, by) != 0, gradient, 0.0)
        return strided_like(gradient, kept.contiguous())
    given = _given(f, x, by)
    memory = floats(x)
    if x.numel() == 0:
        return strided_like(gradient, moved(torch.empty(shape, dtype=gradient.dtype), gradient))
    parts = given or choose(f, memory, x.dtype, shape)
    bits = 8 * gradient.dtype.itemsize
    passed = passing(f, memory, x.dtype, shape, parts, memory_of(gradient), bits)
    return strided_like(gradient, back(passed, shape, gradient.dtype, gradient))


def _given(f: Form, x: Tensor, by: Quantizer) -> Parts | None:
    """A caller's scale, checked; None where it is to be chosen from x."""
    if by.scale is None:
        f.scale_shape(tuple(x.shape))  # raises if the block does not fit
        return None
    return given_parts(f, tuple(x.shape), by.scale, by.zero_point, by.outer, by.more, x)
