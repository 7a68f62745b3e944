# SPDX-License-Identifier: BSD-3-Clause
"""Codes of any width <-> bytes: a little-endian bit stream in each row (docs/numerics.md, 6)."""

from math import gcd

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core.element import Element

_NATIVE = {8: (torch.int8, torch.uint8), 16: (torch.int16, torch.uint16)}


def packed_dtype(element: Element) -> torch.dtype:
    """The dtype of packed storage: the codes' own at 8 and 16 bits, else bytes."""
    if element.bits not in _NATIVE:
        return torch.uint8
    signed = element.code_dtype in (torch.int8, torch.int16)
    return _NATIVE[element.bits][0 if signed else 1]


def packed_size(element: Element, size: int) -> int:
    """How many entries of `packed_dtype` a row of `size` codes takes."""
    return size if element.bits in _NATIVE else (size * element.bits + 7) // 8


def _overlaps(bits: int) -> list[list[tuple[int, int]]]:
    """For each byte of a group: which codes reach into it, and by how far they shift left."""
    codes = 8 // gcd(8, bits)
    return [
        [(i, i * bits - 8 * byte) for i in range(codes) if -bits < i * bits - 8 * byte < 8]
        for byte in range(codes * bits // 8)
    ]


def _shift(x: Tensor, left: int) -> Tensor:
    return x << left if left >= 0 else x >> -left


def pack(codes: Tensor, element: Element) -> Tensor:
    """codes [..., k] -> packed [..., packed_size(k)] of `packed_dtype`; rank 0 becomes [size]."""
    codes = codes.reshape(1) if codes.ndim == 0 else codes
    if element.bits in _NATIVE:
        return codes.to(packed_dtype(element))
    bits, k = element.bits, codes.shape[-1]
    overlaps = _overlaps(bits)
    group = 8 // gcd(8, bits)
    patterns = F.pad(element.to_bits(codes), (0, -k % group))
    patterns = patterns.reshape(*codes.shape[:-1], (k + group - 1) // group, group)
    columns = []
    for overlap in overlaps:
        byte = torch.zeros_like(patterns[..., 0])
        for i, left in overlap:
            byte = byte | _shift(patterns[..., i], left)
        columns.append(byte if bits < 8 else (byte & 0xFF).to(torch.uint8))
    packed = torch.stack(columns, -1).flatten(-2)
    return packed.narrow(-1, 0, packed_size(element, k)).contiguous()


def unpack(packed: Tensor, element: Element, shape: torch.Size | tuple[int, ...]) -> Tensor:
    """packed -> codes of `shape` and the element's code_dtype."""
    if element.bits in _NATIVE:
        return packed.to(element.code_dtype).reshape(shape)
    bits, k = element.bits, shape[-1] if len(shape) else 1
    overlaps = _overlaps(bits)
    group = 8 // gcd(8, bits)
    groups = (k + group - 1) // group
    wide = packed if bits < 8 else packed.to(torch.int32)  # uint8 drops what is shifted out
    stream = F.pad(wide, (0, groups * len(overlaps) - packed.shape[-1]))
    stream = stream.reshape(*packed.shape[:-1], groups, len(overlaps))
    columns = []
    for i in range(group):
        code = torch.zeros_like(stream[..., 0])
        for byte, overlap in enumerate(overlaps):
            for j, left in overlap:
                if j == i:
                    code = code | _shift(stream[..., byte], -left)
        columns.append(code & (2**bits - 1))
    patterns = torch.stack(columns, -1).flatten(-2).narrow(-1, 0, k)
    return element.from_bits(patterns).reshape(shape)
