# SPDX-License-Identifier: BSD-3-Clause
"""Codes, with a given scale or one that is chosen from the numbers."""

from torch import Tensor

from blockscale.core import pack as packing
from blockscale.core import reference
from blockscale.core.operand import Quantizer
from blockscale.kernels.registry import kernel
from blockscale.kernels.webgpu.primitives import fast_path, fast_path_columns, one_pass
from blockscale.kernels.webgpu.primitives.choose import choose
from blockscale.kernels.webgpu.primitives.encode import begins_four, codes, seed_memory
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
    drawn = seed_memory(f, seed)
    if x.numel() == 0:
        parts = reference.choose_qparams(x.cpu(), f.format)
        none = reference.quantize(x.cpu(), parts, f.format, seed)
        return [moved(packing.pack(none, f.format.element), x), *listed(parts, x)]
    memory = floats(x)
    made = fast_path.codes(f, memory, x.dtype, shape, drawn) if begins_four(seed) else None
    made = made or fast_path_columns.codes(f, memory, x.dtype, shape)
    made = made or one_pass.codes(f, memory, x.dtype, shape, drawn)
    if made is None:
        chosen = choose(f, memory, x.dtype, shape)
        made = codes(f, memory, x.dtype, shape, chosen, drawn), chosen
    packed, chosen = made
    return [
        back(packed, f.packed_shape(shape), f.packed_dtype, x),
        *returned(f, chosen, shape, x),
    ]
