# SPDX-License-Identifier: BSD-3-Clause
"""Whether two tensors of integers have the same values, from codes and what is beside them.

A value is (code - zero point) * step + offset, each operation rounded to float32 (docs/numerics.md,
5). Two tensors whose code - zero point, steps and offsets are equal have the same values, bit for
bit, and comparing those takes a fraction of the time that computing values takes. A zero point and
the offset -zero point * step are one thing where nothing is rounded on the way.

Nothing of conversion/exact.py is called here: a proof that shared code with what it proves would
share its faults.
"""

from math import gcd
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.arithmetic.precision import subnormals_kept
from blockscale.core.block import WHOLE, Block
from blockscale.core.elements.integer import Integer
from blockscale.core.format import Format
from blockscale.core.scale import PowerOfTwo
from blockscale.core.scales import TwoLevel
from blockscale.ops import primitives
from blockscale.ops.tensor import QTensor

# Whether two tensors have the same bytes.

_WORD = 8


def same_bytes(a: Tensor, b: Tensor) -> bool:
    """Whether tensors on the CPU have one shape, one dtype and the same bytes: NaN is equal to
    itself, and -0 is not 0.

    numpy compares words in a sixth of the time that torch.equal takes (256 K float32, Zen 4).
    """
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    one, other = (t.contiguous().reshape(-1).view(torch.uint8).numpy() for t in (a, b))
    words = len(one) // _WORD * _WORD
    same = np.array_equal(one[:words].view(np.uint64), other[:words].view(np.uint64))
    return bool(same and np.array_equal(one[words:], other[words:]))


# What a format's codes and scales mean, without how they were chosen.


def meaning(fmt: Format) -> tuple[Any, ...]:
    """Equal for two formats that give the same stored parts the same values, and only then.

    Left out is what says how scales and codes are chosen: the rule of a power of two, which codes
    are used, reciprocals and rounding.
    """
    zero = fmt.zero.name if fmt.zero is not None else ""
    return fmt.element.name, str(fmt.block), _scale(fmt.scale), fmt.asym, zero, _offset(fmt)


def _scale(scale: Any) -> Any:
    if isinstance(scale, PowerOfTwo):
        return "e8m0" if scale.byte else "pow2"
    if isinstance(scale, TwoLevel):
        return meaning(scale.inner), scale.reciprocal
    return scale.name


def _offset(fmt: Format) -> Any:
    offset = fmt.offset
    if offset is None:
        return None
    block = None if offset.block is None else str(offset.block)
    return block, str(offset.type) if offset.inner is None else meaning(offset.inner)


_SLAB = 1 << 20  # codes that are compared at a time: they stay in the cache
_SMALLEST, _INFINITY = 0x00800000, 0x7F800000  # float32: the smallest normal number
_WIDEST = 8  # bits of a code


class _Beside(NamedTuple):
    """What stands beside the codes, one for each `group` codes of a row: [rows, groups] or None."""

    group: int
    step: Tensor  # float32
    zero: Tensor | None  # int32
    offset: Tensor | None  # float32

    def finer(self, group: int) -> "_Beside":
        """The same of smaller groups."""
        zero, offset = (
            None if each is None else _finer(each, self.group, group)
            for each in (self.zero, self.offset)
        )
        return _Beside(group, _finer(self.step, self.group, group), zero, offset)


def _finer(numbers: Tensor, group: int, smaller: int) -> Tensor:
    return numbers if group == smaller else numbers.repeat_interleave(group // smaller, -1)


def same_numbers(one: QTensor, other: QTensor) -> int | None:
    """How many zeros have another sign, where all values are equal; None where that is not seen.

    Seen are integers in groups along rows, or in whole rows, with steps and integer zero points or
    offsets of such groups.
    """
    if tuple(one.shape) != tuple(other.shape) or not one.shape.numel():
        return None
    with subnormals_kept():
        first, second = _beside(one), _beside(other)
        if first is None or second is None:
            return None
        group = gcd(first.group, second.group)
        first, second = first.finer(group), second.finer(group)
        if not same_bytes(first.step, second.step):
            return None
        if first.offset is None and second.offset is None:
            return _same_points(one, first.zero, other, second.zero)
        if first.offset is not None and second.offset is not None:
            same = same_bytes(first.offset, second.offset)
            return _same_points(one, None, other, None) if same else None
        bits = max(one.format.bits, other.format.bits)
        first, second = _with_zero(first, bits), _with_zero(second, bits)
    if first is None or second is None:
        return None
    return _same_points(one, first.zero, other, second.zero, first.step < 0)


def _beside(q: QTensor) -> _Beside | None:
    """Parts of a tensor that this file knows; None of others."""
    fmt, size, parts = q.format, q.size, q.operand.qparams
    own, offset, zero = _group(fmt.block, size), fmt.offset, parts.zero_point
    plain = type(fmt.element) is Integer and fmt.bits <= _WIDEST and fmt.zero is None
    if not plain or own is None:
        return None
    step = reference.step_of(parts, fmt).reshape(-1, size // own)
    if offset is None:
        if zero is not None:
            zero = zero.reshape(step.shape)
            least, most = (int(each) for each in zero.aminmax())
            if least < -(1 << _WIDEST) or most > 1 << _WIDEST:  # abs() of the least int32 is itself
                return None
        return _Beside(own, step, zero, None)
    other = _group(offset.block or fmt.block, size)
    if other is None or zero is not None or parts.offset is None:
        return None
    value = offset.value(parts.offset, parts.offset_outer).reshape(-1, size // other)
    group = gcd(own, other)
    return _Beside(group, _finer(step, own, group), None, _finer(value, other, group))


def _group(block: Block, size: int) -> int | None:
    """How many codes of a row share a number, where such groups fill the row; else None."""
    if block.flat or block.rest != 1 or [dim for dim, _ in block.sizes] != [-1]:
        return None
    length = block.sizes[0][1]
    if length == WHOLE or length >= size:
        return size
    return length if size % length == 0 else None


def _with_zero(parts: _Beside, bits: int) -> _Beside | None:
    """With the zero points that offsets are, where that changes no value; None else.

    Products of codes and steps must be exact: steps are normal, and the last bits of their
    mantissas are 0, as many as a difference of codes has.
    """
    words = parts.step.view(torch.int32) & 0x7FFFFFFF
    exact = (words >= _SMALLEST) & (words < _INFINITY - ((bits + 1) << 23))
    exact &= (words & ((1 << (bits + 1)) - 1)) == 0
    if not bool(exact.all()):
        return None
    if parts.offset is None:
        within = parts.zero is None or bool((parts.zero.abs() <= 1 << bits).all())
        return parts if within else None
    wide, step = -parts.offset.to(torch.float64), parts.step.to(torch.float64)
    zero = (wide / step).round().clamp(-(1 << bits), 1 << bits)
    odd = (zero == 0) & (step < 0)  # 0 * step + 0 is either 0
    if not torch.equal(zero * step, wide) or bool(odd.any()):
        return None
    return parts._replace(zero=zero.to(torch.int32), offset=None)


def _same_points(
    one: QTensor, zero: Tensor | None, other: QTensor, points: Tensor | None,
    negative: Tensor | None = None,
) -> int | None:  # fmt: skip
    """How many points, codes less zero points, are 0 in groups that are `negative`; None where they
    differ.

    There 0 * step is -0, and code * step - zero point * step is +0.
    """
    if negative is not None and not bool(negative.any()):
        negative = None
    if (
        one.format.element == other.format.element
        and _same_zeros(zero, points)
        and negative is None
    ):
        return 0 if same_bytes(one.packed, other.packed) else None
    sides = [(_rows(q), q.format.spelling, q.size, z) for q, z in ((one, zero), (other, points))]
    step, count, zeros = max(1, _SLAB // one.size), sides[0][0].shape[0], 0
    for start in range(0, count, step):
        rows = slice(start, start + step)
        first, second = (_points(*side, rows) for side in sides)
        if not same_bytes(first, second):
            return None
        if negative is not None:
            groups = first.unflatten(-1, (negative.shape[-1], -1))
            zeros += int(((groups == 0) & negative[rows].unsqueeze(-1)).sum())
    return zeros


def _same_zeros(zero: Tensor | None, other: Tensor | None) -> bool:
    if zero is None or other is None:
        return all(each is None or not bool(each.any()) for each in (zero, other))
    return torch.equal(zero, other)


def _rows(q: QTensor) -> Tensor:
    return q.packed.reshape(-1, q.packed.shape[-1])


def _points(packed: Tensor, fmt: str, size: int, zero: Tensor | None, rows: slice) -> Tensor:
    """Codes less zero points of some rows, int16 [rows, size]."""
    codes: Tensor = primitives.unpack(packed[rows], fmt, size)
    codes = codes.to(torch.int16)
    if zero is None:
        return codes
    less = zero[rows].to(torch.int16).unsqueeze(-1)
    return codes.unflatten(-1, (zero.shape[-1], -1)).sub_(less).flatten(-2)
