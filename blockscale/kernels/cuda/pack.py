"""Codes of any width <-> bytes."""

import torch
from torch import Tensor

from blockscale.core import pack as packing
from blockscale.kernels.cuda.primitives import decoding
from blockscale.kernels.cuda.primitives.launch import Form, form, guard, on_device
from blockscale.kernels.cuda.replay.direct import cdiv, direct
from blockscale.kernels.cuda.replay.replay import replayed
from blockscale.kernels.cuda.spec import known
from blockscale.kernels.registry import kernel

_COLUMNS = 1024


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
    """Codes, one an entry and with anything above their bits -> packed."""
    shape = f.packed_shape(patterns.shape)
    packed = torch.empty(shape, dtype=torch.uint8, device=patterns.device)
    count = packed.numel()
    with guard(patterns):
        direct(decoding.pack_row)[(cdiv(count, _COLUMNS),)](
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
    family = f.spec.element.family
    signed = family == "integer" and f.spec.element.signed
    kind = "signed" if signed else "binary" if family == "binary" else "plain"
    count = codes.numel()
    with guard(packed):
        direct(decoding.unpack_row)[(cdiv(count, _COLUMNS),)](
            packed, codes, count, size, bits=f.bits, kind=kind, columns=_COLUMNS
        )
    return codes
