# SPDX-License-Identifier: BSD-3-Clause
"""Codes, with a given scale or one that is chosen from the numbers."""

from torch import Tensor

from blockscale.core import pack as packing
from blockscale.core import reference
from blockscale.core.operand import Quantizer
from blockscale.kernels.registry import kernel
from blockscale.kernels.webgpu.primitives import choose_encode
from blockscale.kernels.webgpu.primitives.encode import codes, seed_memory
from blockscale.kernels.webgpu.primitives.form import back, floats, form, moved
from blockscale.kernels.webgpu.primitives.parts import given_parts, listed, returned
from blockscale.kernels.webgpu.spec import known


@kernel("quantize", backend="webgpu", supports=known)
def quantize(x: Tensor, by: Quantizer) -> Tensor:
    """As ops.primitives.quantize."""
    if by.scale is None:
        return choose_quantize(x, by.fmt, by.seed)[0]
    f, shape = form(by.fmt), tuple(x.shape)
    parts = given_parts(f, shape, by.scale, by.zero_point, by.outer, by.more, x)
    memory, seed = floats(x), seed_memory(f, by.seed)
    if x.numel() == 0:
        return moved(f.new_packed(shape), x)
    packed = codes(f, memory, x.dtype, shape, parts, seed)
    return back(packed, f.packed_shape(shape), f.packed_dtype, x)


@kernel("choose_quantize", backend="webgpu", supports=known)
def choose_quantize(x: Tensor, fmt: str, seed: Tensor | None) -> list[Tensor]:
    """As ops.primitives.choose_quantize."""
    f, shape = form(fmt), tuple(x.shape)
    f.scale_shape(shape)  # raises if the block does not fit
    if x.numel() == 0:
        seed_memory(f, seed)  # raises if it is missing
        parts = reference.choose_qparams(x.cpu(), f.format)
        none = reference.quantize(x.cpu(), parts, f.format, seed)
        return [moved(packing.pack(none, f.format.element), x), *listed(parts, x)]
    packed, chosen = choose_encode.codes(f, floats(x), x.dtype, shape, seed)
    return [
        back(packed, f.packed_shape(shape), f.packed_dtype, x),
        *returned(f, chosen, shape, x),
    ]
