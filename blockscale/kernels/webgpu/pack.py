# SPDX-License-Identifier: BSD-3-Clause
"""Codes of any width <-> bytes."""

from math import prod

from torch import Tensor

from blockscale.core import pack as packing
from blockscale.kernels.registry import ByFormats, Formats, kernel
from blockscale.kernels.webgpu.gpu.launch import launch
from blockscale.kernels.webgpu.gpu.memory import allocate
from blockscale.kernels.webgpu.gpu.shader import Shader
from blockscale.kernels.webgpu.primitives.form import (
    back,
    form,
    memory_of,
    moved,
    place,
    whole,
)
from blockscale.kernels.webgpu.primitives.packing import pack_items


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
        return moved(packing.pack(codes.cpu(), element).clone(), codes)
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
        return moved(packing.unpack(packed.cpu(), element, shape).clone(), packed)
    items = allocate(count * element.code_dtype.itemsize)
    launch(
        Shader("kernels/unpack", f.item_constants),
        {"items": whole(items), "codes": whole(memory_of(packed))},
        {"count": count, "row": size, "row_bytes": f.row_bytes(size)},
        -(-items.nbytes // 1024),
    )
    return back(items, shape, element.code_dtype, packed)
