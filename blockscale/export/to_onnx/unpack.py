# SPDX-License-Identifier: BSD-3-Clause
"""Codes of any width out of packed bytes, by ONNX's operators (docs/numerics.md, section 6).

e3m2, 6 bits: three bytes hold four codes      byte  0: 00000011  1: 11112222  2: 22333333 ...
code i begins in byte i·6/8 at bit i·6 mod 8 and may reach into the next byte

Bits are masked before they are shifted to the right, so that only zeros are shifted out: OpenVINO
(2026.4) divides by a power of two instead, and rounds to the nearest.
"""

from math import gcd

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core.element import Element
from blockscale.export.to_onnx.scope import Scope


def whole_groups(packed: Tensor, bits: int) -> Tensor:
    """Packed rows [..., bytes] with zeros behind them, so that they hold whole groups of codes."""
    return F.pad(packed, (0, -packed.shape[-1] % group(bits)[1])) if bits not in (8, 16) else packed


def group(bits: int) -> tuple[int, int]:
    """How many codes fill whole bytes for the first time, and how many bytes those are."""
    codes = 8 // gcd(8, bits)
    return codes, codes * bits // 8


def unpack(scope: Scope, packed: str, element: Element, size: int) -> str:
    """Packed uint8 [rows, bytes] of whole groups -> bit patterns int32 [rows, size]."""
    bits = element.bits
    if bits in (8, 16):  # int8 and int16 come as they are
        return scope.cast(packed, "INT32")
    codes, width = group(bits)
    packed = scope.op("Reshape", packed, scope.ints(0, -1, width))
    patterns = _small(scope, packed, bits) if bits < 8 else _large(scope, packed, bits)
    patterns = scope.op("Reshape", patterns, scope.ints(0, -1))
    if size % codes:
        patterns = scope.op("Slice", patterns, scope.ints(0), scope.ints(size), scope.ints(1))
    return scope.cast(patterns, "INT32")


def _small(scope: Scope, packed: str, bits: int) -> str:
    """[rows, groups, bytes] uint8 -> [rows, groups, codes] uint8, of at most 7 bits."""
    codes, width = group(bits)
    begins = np.arange(codes) * bits
    first, shift = begins // 8, begins % 8
    above = np.maximum(shift + bits - 8, 0)  # bits of a code that lie in the byte behind
    low = packed if width == 1 else scope.op("Gather", packed, scope.ints(*first), axis=2)
    low = _masked(scope, low, (2**bits - 1 << shift) & 255)
    low = scope.op("BitShift", low, _bytes(scope, shift), direction="RIGHT")
    if width == 1:  # 1, 2 and 4 bits stay in their byte
        return low
    second = np.minimum(first + 1, width - 1)
    high = scope.op("Gather", packed, scope.ints(*second), axis=2)
    high = _masked(scope, high, 2**above - 1)
    back = np.where(above > 0, 8 - shift, 0)
    high = scope.op("BitShift", high, _bytes(scope, back), direction="LEFT")
    return scope.op("BitwiseOr", low, high)


def _large(scope: Scope, packed: str, bits: int) -> str:
    """[rows, groups, bytes] uint8 -> [rows, groups, codes] uint32, of 9 to 15 bits."""
    codes, width = group(bits)
    begins = np.arange(codes) * bits
    words = scope.cast(packed, "UINT32")
    found = ""
    for byte in range(3):  # a code lies in at most three bytes
        place = np.minimum(begins // 8 + byte, width - 1)
        part = scope.op("Gather", words, scope.ints(*place), axis=2)
        left = scope.constant(np.array(8 * byte, np.uint32))
        part = scope.op("BitShift", part, left, direction="LEFT") if byte else part
        found = scope.op("BitwiseOr", found, part) if found else part
    shift = (begins % 8).astype(np.uint32)
    mask = scope.constant((2**bits - 1 << shift).astype(np.uint32))
    found = scope.op("BitwiseAnd", found, mask)
    return scope.op("BitShift", found, scope.constant(shift), direction="RIGHT")


def _masked(scope: Scope, x: str, masks: np.ndarray) -> str:
    return scope.op("BitwiseAnd", x, _bytes(scope, masks))


def _bytes(scope: Scope, numbers: np.ndarray) -> str:
    return scope.constant(numbers.astype(np.uint8))


def decode(scope: Scope, patterns: str, element: Element, book: str = "") -> str:
    """Bit patterns int32 [...] as `unpack` gives -> their values float32 [...].

    book: the values by code of an element that has them beside the tensor.
    """
    if book:
        return scope.op("Gather", book, patterns)
    if element.bits <= 8 and not _as_they_are(element):
        every = torch.arange(2**element.bits, dtype=torch.uint8)
        values = element.decode(element.from_bits(every))
        return scope.op("Gather", scope.constant(values.numpy()), patterns)
    if element.signed and element.bits not in (8, 16):  # two's complement
        half = scope.constant(np.array(2 ** (element.bits - 1), np.int32))
        whole = scope.constant(np.array(2**element.bits, np.int32))
        negative = scope.op("GreaterOrEqual", patterns, half)
        patterns = scope.op("Where", negative, scope.op("Sub", patterns, whole), patterns)
    return scope.cast(patterns, "FLOAT")


def _as_they_are(element: Element) -> bool:
    """Whether codes are numbers of a type of their own: int8, uint8, int16, uint16."""
    return element.integer and element.bits in (8, 16)
