# SPDX-License-Identifier: BSD-3-Clause
"""Codes to values in few of torch's core ops, which ExecuTorch runs: what files keep are the codes.

A packed code is cut out of the two bytes it lies in by exact divisions of small numbers in float32;
numbers that are no integers are looked up in a table.
"""

from functools import lru_cache
from math import gcd

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core.block import WHOLE, repeated
from blockscale.core.element import Element
from blockscale.core.format import Format
from blockscale.core.operand import FIRST, Operand
from blockscale.core.scale import FloatScale, PowerOfTwo
from blockscale.core.scales import CodeScale, TwoLevel
from blockscale.ops.primitives import dequantize


def dequantized(weight: Operand, dtype: torch.dtype) -> Tensor:
    """The values [...] of a quantized tensor, by ops that ExecuTorch has."""
    fmt, shape = weight.format, (*weight.codes.shape[:-1], weight.size)
    values = _values(weight.codes, fmt.element, weight.size)
    if weight.zero_point is not None:
        values = values - fmt.block.expand(weight.zero_point.to(torch.float32), shape)
    return (values * fmt.block.expand(_steps(weight), shape)).to(dtype)


def rows(weight: Operand, indices: Tensor, dtype: torch.dtype) -> Tensor:
    """The same of chosen rows of a table [rows, size]: only they are decoded."""
    fmt, size, choice = weight.format, weight.size, indices.reshape(-1)
    codes = weight.codes.to(torch.int32).index_select(0, choice)
    height, width = fmt.block.sizes_for(2)

    def per_element(parts: Tensor) -> Tensor:
        each = parts
        if height != WHOLE:
            each = parts.index_select(0, choice if height == 1 else choice // height)
        return repeated(each, width, 1, size) if width > 1 else each

    values = _values(codes, fmt.element, size)
    if weight.zero_point is not None:
        values = values - per_element(weight.zero_point.to(torch.float32))
    values = values * per_element(_steps(weight))
    return values.to(dtype).reshape((*indices.shape, size))


def plain(fmt: Format) -> bool:
    """Whether these functions know the format; the others are written as their references are."""
    is_known = not set(fmt.parts) - set(FIRST) and not fmt.element.learned and fmt.zero is None
    return is_known and (fmt.element.bits <= 8 or fmt.element.integer)


def _values(packed: Tensor, element: Element, size: int) -> Tensor:
    """Packed codes [..., n] -> the values [..., size] of their codes in float32."""
    bits = element.bits
    if element.integer and bits in (8, 16):
        return packed.to(torch.float32)
    codes = packed.to(torch.float32) if bits == 8 else _codes(packed, bits, size)
    if element.integer:
        half = 2.0 ** (bits - 1)
        return codes - 2 * half * torch.floor(codes / half) if element.signed else codes
    return _looked_up(_element_table(element), codes)


Table = tuple[float, ...]


@lru_cache
def _element_table(element: Element) -> Table:
    """The value of every code. Cached: the tables are made while nothing is traced (`exact`)."""
    every = torch.arange(2**element.bits, dtype=torch.int32).to(torch.uint8)
    return tuple(element.decode(element.from_bits(every)).tolist())


@lru_cache
def _step_table(fmt: Format) -> Table:
    """The step, or the scale in units of its outer scale, of every byte."""
    every = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    if isinstance(fmt.scale, PowerOfTwo):
        return tuple(fmt.scale.step(every, fmt.fraction_bits).tolist())
    if isinstance(fmt.scale, CodeScale):
        return tuple(fmt.scale.step(every).tolist())
    assert isinstance(fmt.scale, TwoLevel)
    return tuple(fmt.scale.values(every).tolist())


def _looked_up(table: Table, index: Tensor) -> Tensor:
    """A table, whole numbers [...] -> its entries [...] in float32."""
    return torch.tensor(table)[index.to(torch.int64)]


def _codes(packed: Tensor, bits: int, size: int) -> Tensor:
    """Bytes [..., n] of a little-endian stream -> codes [..., size], whole numbers in float32."""
    each = 8 // gcd(8, bits)  # codes in the fewest whole bytes
    width = each * bits // 8
    groups = -(-size // each)
    stream = packed.to(torch.float32)
    stream = F.pad(stream, (0, groups * width - packed.shape[-1]))
    stream = stream.reshape(*packed.shape[:-1], groups, width)
    columns = []
    for i in range(each):
        at, shift = divmod(i * bits, 8)
        word = stream[..., at]
        if shift + bits > 8:
            word = word + 256.0 * stream[..., at + 1]
        word = torch.floor(word / 2.0**shift)
        columns.append(word - 2.0**bits * torch.floor(word / 2.0**bits))
    return torch.stack(columns, -1).flatten(-2)[..., :size]


def _steps(weight: Operand) -> Tensor:
    """The float32 step of each block; bytes are looked up."""
    scale, fmt = weight.format.scale, weight.format
    if isinstance(scale, FloatScale):
        return scale.step(weight.scale)
    if isinstance(scale, PowerOfTwo):
        return _looked_up(_step_table(fmt), weight.scale) if scale.byte else weight.scale
    if isinstance(scale, CodeScale):
        return _looked_up(_step_table(fmt), weight.scale)
    assert isinstance(scale, TwoLevel) and weight.outer is not None
    inner = _looked_up(_step_table(fmt), weight.scale)
    each = scale.inner.block.expand(weight.outer.to(torch.float32), weight.scale.shape)
    return inner / each if scale.reciprocal else each * inner


def exact(weight: Operand) -> bool:
    """Whether `dequantized` gives the reference's bits for this tensor."""
    if not plain(weight.format):
        return False
    result = dequantized(weight, torch.float32)
    expected: Tensor = dequantize.reference(weight, torch.float32)
    return torch.equal(result.view(torch.int32), expected.view(torch.int32))
