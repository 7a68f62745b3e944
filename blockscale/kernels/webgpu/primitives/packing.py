# SPDX-License-Identifier: BSD-3-Clause
"""Codes, one an item, become packed bytes on the GPU."""

from blockscale.kernels.webgpu.gpu.launch import launch
from blockscale.kernels.webgpu.gpu.memory import Memory, allocate
from blockscale.kernels.webgpu.gpu.shader import Shader
from blockscale.kernels.webgpu.primitives.form import Form, whole


def pack_items(f: Form, items: Memory, count: int, row: int, item_bits: int) -> Memory:
    """Codes [count], one an item of 8, 16 or 32 bits, of rows of `row` -> packed bytes.

    Bits of an item above those of a code are dropped.
    """
    constants = dict(f.item_constants) | {"ITEM_BITS": item_bits}
    if item_bits != 8 * f.format.element.code_dtype.itemsize:
        constants["BY_SIGN"] = False  # patterns, not codes
    nbytes = count // row * f.row_bytes(row)
    packed = allocate(nbytes)
    launch(
        Shader("kernels/pack", tuple(constants.items())),
        {"items": whole(items), "codes": whole(packed)},
        {"bytes": nbytes, "row_bytes": f.row_bytes(row), "row": row},
        -(-nbytes // 1024),
    )
    return packed
