# SPDX-License-Identifier: BSD-3-Clause
"""Values from packed codes."""

import torch
from torch import Tensor

from blockscale.core.operand import Operand
from blockscale.kernels.cpu import _native
from blockscale.kernels.cpu.native import DTYPES, Native, addresses, known, native, threads
from blockscale.kernels.operand import new
from blockscale.kernels.registry import kernel


@kernel("dequantize", backend="cpu", supports=known)
def dequantize(packed: Operand, dtype: torch.dtype) -> Tensor:
    """As ops.primitives.dequantize; other dtypes than the three are cast from float32."""
    n = native(packed.fmt)
    shape = (*packed.codes.shape[:-1], packed.size) if packed.scale.ndim else ()
    stored = n.checked_codes(packed.codes, shape)
    parts = n.checked_parts(shape, packed.scale, packed.zero_point, packed.outer, more=packed.more)
    kind = DTYPES.get(dtype, 0)
    values = new(shape, dtype if dtype in DTYPES else torch.float32)
    if values.numel():
        codes, packs = stored, n.packs(shape)
        if not packs:  # rows end within a byte
            codes = n.new_patterns(shape)
            unpack_into(n, stored, packed.size, codes)
        _native.dequantize(
            n.handle, shape, codes.data_ptr(), packs, addresses(parts), values.data_ptr(), kind,
            threads(),
        )  # fmt: skip
    return values if values.dtype == dtype else values.to(dtype)


def unpack_into(n: Native, packed: Tensor, size: int, patterns: Tensor) -> None:
    """Packed rows -> patterns, one entry a code."""
    rows = patterns.numel() // size
    _native.unpack(n.bits, packed.data_ptr(), rows, size, patterns.data_ptr(), threads())
