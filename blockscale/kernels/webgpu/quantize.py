# SPDX-License-Identifier: BSD-3-Clause
"""The ops that quantize and bring back: scales, codes, both at once, numbers, bit-packing."""

from math import prod

import torch
from torch import Tensor

from blockscale.core import pack as packing
from blockscale.core import reference
from blockscale.core.operand import Operand, Quantizer
from blockscale.core.reference import FLOATS
from blockscale.kernels.operand import strided_like
from blockscale.kernels.registry import ByFormats, Formats, kernel
from blockscale.kernels.webgpu.gpu.launch import launch
from blockscale.kernels.webgpu.gpu.memory import allocate
from blockscale.kernels.webgpu.gpu.shader import Shader
from blockscale.kernels.webgpu.primitives import choose_encode
from blockscale.kernels.webgpu.primitives.choose import choose
from blockscale.kernels.webgpu.primitives.encode import (
    codes,
    decode,
    pack_items,
    passing,
    seed_memory,
    values,
)
from blockscale.kernels.webgpu.primitives.form import (
    Form,
    Parts,
    back,
    floats,
    form,
    given_parts,
    memory_of,
    move_like,
    parts_like,
    place,
    results_of,
    whole,
)
from blockscale.kernels.webgpu.spec import known

# Codes, with a given scale or one that is chosen from the numbers.


@kernel("quantize", backend="webgpu", supports=known)
def quantize(x: Tensor, by: Quantizer) -> Tensor:
    """As ops.primitives.quantize."""
    if by.scale is None:
        return choose_quantize(x, by.fmt, by.seed)[0]
    f, shape = form(by.fmt), tuple(x.shape)
    parts = given_parts(f, shape, by.scale, by.zero_point, by.outer, by.more, x)
    memory, seed = floats(x), seed_memory(f, by.seed)
    if x.numel() == 0:
        return move_like(f.new_packed(shape), x)
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
        return [move_like(packing.pack(none, f.format.element), x), *parts_like(parts, x)]
    packed, choice = choose_encode.codes(f, floats(x), x.dtype, shape, seed)
    return [
        back(packed, f.packed_shape(shape), f.packed_dtype, x),
        *results_of(f, choice, shape, x),
    ]


# The scale of each block.


@kernel("choose_qparams", backend="webgpu", supports=known)
def choose_qparams(x: Tensor, fmt: str) -> list[Tensor]:
    """As ops.primitives.choose_qparams."""
    f, shape = form(fmt), tuple(x.shape)
    f.scale_shape(shape)  # raises if the block does not fit
    if x.numel() == 0:
        return parts_like(reference.choose_qparams(x.cpu(), f.format), x)
    return results_of(f, choose(f, floats(x), x.dtype, shape), shape, x)


# Values from packed codes.


@kernel("dequantize", backend="webgpu", supports=known)
def dequantize(packed: Operand, dtype: torch.dtype) -> Tensor:
    """As ops.primitives.dequantize; other dtypes than the three are cast from float32."""
    f, shape = form(packed.fmt), packed.shape
    where = None if packed.codes.is_cpu else packed.codes.device
    codes = f.checked_codes(packed.codes, shape, where)
    parts = given_parts(f, shape, packed.scale, packed.zero_point, packed.outer, packed.more, codes)
    kind = dtype if dtype in FLOATS else torch.float32
    if torch.Size(shape).numel() == 0:
        return move_like(torch.empty(shape, dtype=dtype), codes)
    values = back(decode(f, memory_of(codes), shape, parts, kind), shape, kind, codes)
    return values if kind == dtype else values.to(dtype)


# Values after a round trip, and the gradient that passes it.


@kernel("fake_quantize", backend="webgpu", supports=known)
def fake_quantize(x: Tensor, by: Quantizer) -> Tensor:
    """As ops.primitives.fake_quantize."""
    f, shape = form(by.fmt), tuple(x.shape)
    settings = _own_parts(f, x, by)
    memory = floats(x)
    if x.numel() == 0:
        seed_memory(f, by.seed)  # raises if it is missing
        return strided_like(x, move_like(torch.empty(shape, dtype=x.dtype), x))
    if settings is None:
        result = choose_encode.values(f, memory, x.dtype, shape, by.seed)
    else:
        result = values(f, memory, x.dtype, shape, settings, seed_memory(f, by.seed))
    return strided_like(x, back(result, shape, x.dtype, x))


@kernel("straight_through", backend="webgpu", supports=known)
def straight_through(gradient: Tensor, x: Tensor, by: Quantizer) -> Tensor:
    """As ops.primitives.straight_through."""
    f, shape = form(by.fmt), tuple(x.shape)
    if gradient.shape != x.shape:
        raise ValueError(f"expected a gradient of shape {shape}, found {tuple(gradient.shape)}")
    if gradient.dtype not in FLOATS:
        ones = move_like(torch.ones(shape), x)
        passed_on = torch.where(straight_through(ones, x, by) != 0, gradient, 0.0)
        return strided_like(gradient, passed_on.contiguous())
    settings = _own_parts(f, x, by)
    memory = floats(x)
    if x.numel() == 0:
        return strided_like(gradient, move_like(torch.empty(shape, dtype=gradient.dtype), gradient))
    parts = settings or choose(f, memory, x.dtype, shape)
    bits = 8 * gradient.dtype.itemsize
    result = passing(f, memory, x.dtype, shape, parts, memory_of(gradient), bits)
    return strided_like(gradient, back(result, shape, gradient.dtype, gradient))


def _own_parts(f: Form, x: Tensor, by: Quantizer) -> Parts | None:
    """A caller's scale, checked; None where it is to be chosen from x."""
    if by.scale is None:
        f.scale_shape(tuple(x.shape))  # raises if the block does not fit
        return None
    return given_parts(f, tuple(x.shape), by.scale, by.zero_point, by.outer, by.more, x)


# Codes of any width <-> bytes.


def _any(formats: Formats) -> bool:
    """Every element: nothing is computed with codes."""
    del formats
    return True


anything = ByFormats(_any)


@kernel("pack", backend="webgpu", supports=anything)
def pack(codes: Tensor, fmt: str) -> Tensor:
    """As ops.primitives.pack."""
    f = form(fmt)
    element = f.format.element
    if codes.dtype != element.code_dtype:
        raise TypeError(f"{fmt}: codes are {element.code_dtype}, found {codes.dtype}")
    shape = f.packed_shape(codes.shape)
    if codes.numel() == 0:
        return move_like(packing.pack(codes.cpu(), element).clone(), codes)
    row = codes.shape[-1] if codes.ndim else 1
    packed = pack_items(f, memory_of(codes), codes.numel(), row, 8 * codes.dtype.itemsize)
    return back(packed, shape, f.packed_dtype, codes)


@kernel("unpack", backend="webgpu", supports=anything)
def unpack(packed: Tensor, fmt: str, size: int) -> Tensor:
    """As ops.primitives.unpack."""
    f = form(fmt)
    element = f.format.element
    shape = (*packed.shape[:-1], size)
    count = prod(shape)
    f.checked_codes(packed, shape, place(packed))
    if count == 0:
        return move_like(packing.unpack(packed.cpu(), element, shape).clone(), packed)
    items = allocate(count * element.code_dtype.itemsize)
    launch(
        Shader("kernels/codes/unpack", f.item_constants),
        {"items": whole(items), "codes": whole(memory_of(packed))},
        {"count": count, "row": size, "row_bytes": f.row_bytes(size)},
        -(-items.nbytes // 1024),
    )
    return back(items, shape, element.code_dtype, packed)
