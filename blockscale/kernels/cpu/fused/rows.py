# SPDX-License-Identifier: BSD-3-Clause
"""Operands and results of fused ops as the C++ takes them: rows of floats, or of codes."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from blockscale.core.operand import Quantizer, Value
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.kernels.cpu import _native
from blockscale.kernels.cpu.native import FAMILIES, FEATURES, addresses, native
from blockscale.kernels.numbers import supports_families
from blockscale.kernels.operand import in_order, listed, new

_known = supports_families(FAMILIES, FEATURES)
Shape = tuple[int, ...]


@lru_cache(1024)
def row_block(fmt: str, shape: Shape) -> int:
    """How many columns of a row share a scale: 0 if all rows share one, -1 for other blocks.

    -1 as well for two levels, for rows that end within a byte, and for elements that the C++ does
    not know.
    """
    if not _known((parse(fmt),)) or not shape or not native(fmt).packs(shape):
        return -1
    block: int = _native.row_block(native(fmt).handle, shape)
    return block


def shape_of(value: Value) -> Shape:
    """The shape of the tensor that a value stands for, as `traced`."""
    return traced(value.operand.shape if value.fmt else value.data.shape)


def traced(shape: Sequence[Any]) -> Shape:
    """A shape in numbers: of symbolic sizes those that a graph was traced with, without a guard.

    Graphs ask what supports their nodes. A size that depends on data counts as 0, which no kernel
    here takes.
    """
    return tuple(size if type(size) is int else (size.node.hint or 0) for size in shape)


def readable(value: Value) -> bool:
    """Whether the C++ reads it: float32, or codes whose scales lie along rows."""
    if not value.fmt:
        return value.data.dtype == torch.float32 and value.data.is_cpu
    return row_block(value.fmt, shape_of(value)) >= 0


def writable(y: Quantizer, shape: Shape) -> bool:
    """Whether the C++ writes a float32 result of this shape as `y` says, part by part."""
    if not y.fmt:
        return True
    block = row_block(y.fmt, shape)
    drawn = parse(y.fmt).rounding == "stochastic"
    return not drawn and (block > 0 or (block == 0 and y.scale is not None))


def rows_of(value: Value, keep: list[Tensor]) -> Any:
    """The `_native.Rows` of a value that is `readable`; `keep` takes what it refers to.

    Raises ValueError if codes or scales do not fit the format.
    """
    if not value.fmt:
        data = in_order(value.data)
        keep.append(data)
        return _native.Rows(data.data_ptr())
    n, shape = native(value.fmt), shape_of(value)
    codes = n.checked_codes(value.data, shape)
    parts = checked(value.fmt, shape, value)
    keep += [codes, *listed(parts)]
    block = row_block(value.fmt, shape)
    return _native.Rows(n.handle, block, codes.data_ptr(), addresses(parts))


class Result:
    """Where a result of `shape` goes that is `writable`: new memory for it.

    values: also as floats; else only if nothing else is asked for
    tensors: what the op returns: [codes], [codes, *parts], or [floats]
    floats: the address of the floats, 0 for none
    codes: the `_native.Rows` of the codes, None for none
    """

    def __init__(self, y: Quantizer, shape: Shape, *, values: Tensor | None = None):
        self.given = y.scale is not None
        self.codes: Any = None
        if not y.fmt:
            values = new(shape, torch.float32) if values is None else values
            self.tensors = [values]
        else:
            n = native(y.fmt)
            parts = checked(y.fmt, shape, y) if self.given else n.new_parts(shape)
            codes = n.new_packed(shape)
            self.tensors = [codes] if self.given else [codes, *listed(parts)]
            self._keep = parts
            place = addresses(parts)
            self.codes = _native.Rows(n.handle, row_block(y.fmt, shape), codes.data_ptr(), place)
        self.floats = 0 if values is None else values.data_ptr()


def checked(fmt: str, shape: Shape, of: Value | Quantizer) -> QParams:
    """A caller's scale for a tensor of `shape`. One number may be of any rank.

    Raises ValueError if it misfits.
    """
    n = native(fmt)
    assert of.scale is not None
    expected = n.scale_shape(shape)
    parts = (of.scale, of.zero_point)
    if math.prod(expected) == 1:
        parts = tuple(  # type: ignore[assignment]
            part.reshape(expected) if part is not None and part.numel() == 1 else part
            for part in parts
        )
    return n.checked_parts(shape, *parts, of.outer, more=of.more)
