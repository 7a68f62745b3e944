# SPDX-License-Identifier: BSD-3-Clause
"""From what a file stores to numbers of elements: steps of blocks, spread; codes, unpacked."""

from math import gcd, prod

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core.block import Block
from blockscale.core.element import Element
from blockscale.core.format import Format
from blockscale.core.reference import QParams, step_of
from blockscale.core.scale import PowerOfTwo
from blockscale.core.scales import CodeScale, TwoLevel
from blockscale.export.to_onnx.scope import Scope, holds, native, put_bytes, put_tensor


def expand(
    scope: Scope, parts: str, block: Block, stored: tuple[int, ...], shape: tuple[int, ...]
) -> str:
    """parts, one a block, of the shape `stored` -> what broadcasts to a tensor of `shape`.

    All sizes are known: these are the blocks of weights.
    """
    if prod(stored) == 1:
        return scope.op("Reshape", parts, scope.ints(*[1] * len(shape)))
    if block.flat:
        return _expand_flat(scope, parts, block, shape)
    for dim, (count, n, size) in enumerate(
        zip(stored, shape, block.sizes_for(len(shape)), strict=True)
    ):
        if size > 1 and count > 1:
            parts = repeat(scope, parts, dim, n, size)
    return parts


def repeat(scope: Scope, parts: str, dim: int, n: int, size: int) -> str:
    """parts, one a block of `size` along `dim` -> one for each of n elements."""
    zero, one = (scope.op("Squeeze", scope.ints(number)) for number in (0, 1))
    every = scope.op("Range", zero, scope.op("Squeeze", scope.ints(n)), one)
    place = scope.op("Div", every, scope.ints(size))
    return scope.op("Gather", parts, place, axis=dim)


def _expand_flat(scope: Scope, parts: str, block: Block, shape: tuple[int, ...]) -> str:
    size = prod(shape)
    count = -(-size // block.flat)
    rows = (1, -1) if block.strided else (-1, 1)
    whole = (block.flat, count) if block.strided else (count, block.flat)
    parts = scope.op("Reshape", parts, scope.ints(*rows))
    parts = scope.op("Expand", parts, scope.ints(*whole))
    parts = scope.op("Reshape", parts, scope.ints(-1))
    if count * block.flat != size:
        parts = scope.op("Slice", parts, scope.ints(0), scope.ints(size), scope.ints(0))
    return scope.op("Reshape", parts, scope.ints(*shape))


# The float32 step of each block from its scale as it is stored (docs/numerics.md, section 1.3).
#
# A byte of e8m0 stays a byte, and the codes of a scale of two levels stay codes: the file holds
# what is stored, and nodes make the step of it. onnxruntime computes them once, when it
# loads the file.


def step(scope: Scope, name: str, fmt: Format, qparams: QParams) -> str:
    """The step of every block [scale's shape], from initializers `<name>.scale`, `<name>.outer`."""
    file, scale, stored = scope.file, fmt.scale, qparams.scale
    if isinstance(scale, PowerOfTwo) and scale.byte:
        power = _powers(scope, f"{name}.scale", stored)
        if not fmt.fraction_bits:
            return power
        return scope.op("Mul", power, scope.floats(2.0**-fmt.fraction_bits))
    if isinstance(scale, TwoLevel):
        return _two_levels(scope, name, fmt, scale, qparams)
    if isinstance(scale, CodeScale):  # ONNX has no such type: their values
        return put_tensor(file, f"{name}.scale", scale.step(stored))
    result = put_tensor(file, f"{name}.scale", stored)
    return result if stored.dtype == torch.float32 else scope.cast(result, "FLOAT")


def _powers(scope: Scope, name: str, stored: Tensor) -> str:
    """The powers of two that bytes of e8m0 are."""
    if holds(scope.file, "FLOAT8E8M0"):
        return scope.cast(put_bytes(scope.file, name, "FLOAT8E8M0", stored), "FLOAT")
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e8m0fnu).to(torch.float32)
    table = put_tensor(scope.file, "powers_of_two", every)  # one for all weights
    return scope.op("Gather", table, scope.cast(put_tensor(scope.file, name, stored), "INT32"))


def _two_levels(
    scope: Scope, name: str, fmt: Format, scale: "TwoLevel[Format]", qparams: QParams
) -> str:
    """outer · inner; steps that this product does not give to the bit are stored themselves."""
    assert qparams.outer is not None
    inner, outer = scale.inner, qparams.outer.to(torch.float32)
    codes, wide = scale.values(qparams.scale), inner.block.expand(outer, qparams.scale.shape)
    product = codes / wide if scale.reciprocal else wide * codes
    expected = step_of(qparams, fmt)
    if not torch.equal(product.nan_to_num(-1.0), expected.nan_to_num(-1.0)):
        return put_tensor(scope.file, f"{name}.step", expected)
    inner_values = values(scope, f"{name}.scale", inner.element, qparams.scale)
    above = put_tensor(scope.file, f"{name}.outer", qparams.outer)
    if qparams.outer.dtype != torch.float32:
        above = scope.cast(above, "FLOAT")
    above = expand(scope, above, inner.block, tuple(qparams.outer.shape), tuple(codes.shape))
    return (
        scope.op("Div", inner_values, above)
        if scale.reciprocal
        else scope.op("Mul", above, inner_values)
    )


def values(scope: Scope, name: str, element: Element, codes: Tensor) -> str:
    """The values of codes that lie in a byte each: uint8 [...], bit patterns."""
    kind = native(element, scope.file.opset)
    if kind is not None and kind.startswith("FLOAT8"):
        return scope.cast(put_bytes(scope.file, name, kind, codes), "FLOAT")
    stored = put_tensor(scope.file, name, codes)
    return scope.op("Gather", table(scope, element), scope.cast(stored, "INT32"))


def table(scope: Scope, element: Element) -> str:
    """A constant float32 [2^bits]: the value of each bit pattern of an element of up to 8 bits."""
    patterns = torch.arange(2**element.bits, dtype=torch.uint8)
    return scope.constant(element.decode(element.from_bits(patterns)).numpy())


def offset(scope: Scope, name: str, fmt: Format, qparams: QParams) -> tuple[str, Block] | None:
    """The offset of every block and the block that it is of; None in formats without one."""
    if fmt.offset is None or qparams.offset is None:
        return None
    inner, block = fmt.offset.inner, fmt.offset.block or fmt.block
    if inner is None:
        stored = put_tensor(scope.file, f"{name}.offset", qparams.offset)
        if qparams.offset.dtype != torch.float32:
            stored = scope.cast(stored, "FLOAT")
        return stored, block
    assert qparams.offset_outer is not None
    wide = inner.block.expand(qparams.offset_outer.to(torch.float32), qparams.offset.shape)
    expected = fmt.offset.value(qparams.offset, qparams.offset_outer)
    product = inner.element.decode(inner.element.from_bits(qparams.offset)) * wide
    if not torch.equal(product.nan_to_num(-1.0), expected.nan_to_num(-1.0)):  # clamped
        return put_tensor(scope.file, f"{name}.offset", expected), block
    inner_values = values(scope, f"{name}.offset", inner.element, qparams.offset)
    outer = put_tensor(scope.file, f"{name}.offset_outer", qparams.offset_outer.to(torch.float32))
    shapes = tuple(qparams.offset_outer.shape), tuple(qparams.offset.shape)
    return scope.op("Mul", inner_values, expand(scope, outer, inner.block, *shapes)), block


# Codes of any width out of packed bytes, by ONNX's operators (docs/numerics.md, section 6).
#
# e3m2, 6 bits: three bytes hold four codes      byte  0: 00000011  1: 11112222  2: 22333333 ...
# code i begins in byte i·6/8 at bit i·6 mod 8 and may reach into the next byte
#
# Bits are masked before they are shifted to the right, so that only zeros are shifted out: OpenVINO
# (2026.4) divides by a power of two instead, and rounds to the nearest.


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
    result = ""
    for byte in range(3):  # a code lies in at most three bytes
        place = np.minimum(begins // 8 + byte, width - 1)
        part = scope.op("Gather", words, scope.ints(*place), axis=2)
        by = scope.constant(np.array(8 * byte, np.uint32))
        part = scope.op("BitShift", part, by, direction="LEFT") if byte else part
        result = scope.op("BitwiseOr", result, part) if result else part
    shift = (begins % 8).astype(np.uint32)
    mask = scope.constant((2**bits - 1 << shift).astype(np.uint32))
    result = scope.op("BitwiseAnd", result, mask)
    return scope.op("BitShift", result, scope.constant(shift), direction="RIGHT")


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
