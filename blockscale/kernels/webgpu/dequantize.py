# SPDX-License-Identifier: BSD-3-Clause
"""Values from packed codes."""

import torch
from torch import Tensor

from blockscale.core.operand import Operand
from blockscale.core.reference import FLOATS
from blockscale.kernels.registry import kernel
from blockscale.kernels.webgpu.primitives.decode import decode
from blockscale.kernels.webgpu.primitives.form import back, form, memory_of, moved
from blockscale.kernels.webgpu.primitives.parts import given_parts
from blockscale.kernels.webgpu.spec import known


@kernel("dequantize", backend="webgpu", supports=known)
def dequantize(packed: Operand, dtype: torch.dtype) -> Tensor:
    """As ops.primitives.dequantize; other dtypes than the three are cast from float32."""
    f, shape = form(packed.fmt), packed.shape
    where = None if packed.codes.is_cpu else packed.codes.device
    codes = f.checked_codes(packed.codes, shape, where)
    parts = given_parts(f, shape, packed.scale, packed.zero_point, packed.outer, packed.more, codes)
    kind = dtype if dtype in FLOATS else torch.float32
    if torch.Size(shape).numel() == 0:
        return moved(torch.empty(shape, dtype=dtype), codes)
    values = back(decode(f, memory_of(codes), shape, parts, kind), shape, kind, codes)
    return values if kind == dtype else values.to(dtype)
