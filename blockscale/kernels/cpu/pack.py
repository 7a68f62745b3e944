# SPDX-License-Identifier: BSD-3-Clause
"""Codes of any width <-> bytes."""

import torch
from torch import Tensor

from blockscale.core import pack as packing
from blockscale.kernels.cpu import _native
from blockscale.kernels.cpu.dequantize import unpack_into
from blockscale.kernels.cpu.native import known, native, threads
from blockscale.kernels.operand import in_order
from blockscale.kernels.registry import kernel


@kernel("pack", backend="cpu", supports=known)
def pack(codes: Tensor, fmt: str) -> Tensor:
    """As ops.primitives.pack."""
    n = native(fmt)
    if n.bytewise or codes.ndim == 0 or codes.numel() == 0:
        return packing.pack(codes, n.format.element).clone()
    patterns = n.format.element.to_bits(codes) if n.bits == 1 else codes
    patterns = in_order(patterns.to(torch.uint8 if n.bits <= 8 else torch.int16))
    packed = n.new_packed(codes.shape)
    size = codes.shape[-1]
    _native.pack(
        n.bits, patterns.data_ptr(), codes.numel() // size, size, packed.data_ptr(), threads()
    )
    return packed


@kernel("unpack", backend="cpu", supports=known)
def unpack(packed: Tensor, fmt: str, size: int) -> Tensor:
    """As ops.primitives.unpack."""
    n = native(fmt)
    shape = (*packed.shape[:-1], size)
    packed = n.checked_codes(packed, shape)
    if n.bytewise or size == 0 or packed.numel() == 0:
        return packing.unpack(packed, n.format.element, shape).clone()
    patterns = n.new_patterns(shape)
    unpack_into(n, packed, size, patterns)
    whole = patterns if n.bits <= 8 else patterns.to(torch.int32)
    return n.format.element.from_bits(whole)
