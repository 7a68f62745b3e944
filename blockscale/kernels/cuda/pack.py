# SPDX-License-Identifier: BSD-3-Clause
"""Codes of any width <-> bytes."""

import torch
from torch import Tensor

from blockscale.core import pack as packing
from blockscale.kernels.cuda.primitives.decoding import pack_row, unpack_row
from blockscale.kernels.cuda.primitives.form import Form, form, on_device
from blockscale.kernels.cuda.primitives.launch import guard
from blockscale.kernels.cuda.replay.direct import cdiv, direct
from blockscale.kernels.cuda.replay.replay import replayed
from blockscale.kernels.cuda.spec import known
from blockscale.kernels.registry import kernel

_COLUMNS = 1024  # bytes or codes of one program


@kernel("pack", backend="cuda", supports=known)
@replayed()
def pack(codes: Tensor, fmt: str) -> Tensor:
    """As ops.primitives.pack."""
    f = form(fmt)
    on_device(codes)
    if f.bits in (8, 16) or codes.ndim == 0 or codes.numel() == 0:
        return packing.pack(codes, f.format.element).clone()
    patterns = f.format.element.to_bits(codes) if f.bits == 1 else codes
    return pack_patterns(f, patterns.contiguous())


def pack_patterns(f: Form, patterns: Tensor) -> Tensor:
    """Codes [...], uint8 or int16, with anything above their bits -> packed bytes, uint8."""
    shape = f.packed_shape(patterns.shape)
    packed = torch.empty(shape, dtype=torch.uint8, device=patterns.device)
    count = packed.numel()
    with guard(patterns):
        direct(pack_row)[(cdiv(count, _COLUMNS),)](
            patterns, packed, count, patterns.shape[-1] if patterns.ndim else 1,
            bits=f.bits, columns=_COLUMNS,
        )  # fmt: skip
    return packed


@kernel("unpack", backend="cuda", supports=known)
@replayed()
def unpack(packed: Tensor, fmt: str, size: int) -> Tensor:
    """As ops.primitives.unpack."""
    f = form(fmt)
    shape = (*packed.shape[:-1], size)
    packed = f.checked_codes(packed, shape)
    element = f.format.element
    if f.bits in (8, 16) or size == 0 or packed.numel() == 0:
        return packing.unpack(packed, element, shape).clone()
    codes = torch.empty(shape, dtype=element.code_dtype, device=packed.device)
    kind = _kind(f)
    count = codes.numel()
    with guard(packed):
        direct(unpack_row)[(cdiv(count, _COLUMNS),)](
            packed, codes, count, size, bits=f.bits, kind=kind, columns=_COLUMNS
        )
    return codes


def _kind(f: Form) -> str:
    """How `unpack_row` reads a bit pattern. Raises TypeError for a family that it does not know."""
    element = f.spec.element
    match element.family:
        case "integer":
            return "signed" if element.signed else "plain"
        case "minifloat" | "codebook":
            return "plain"
        case "binary":
            return "binary"
    raise TypeError(f"{f.format}: no CUDA kernel unpacks elements of the family {element.family!r}")
