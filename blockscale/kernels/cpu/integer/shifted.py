# SPDX-License-Identifier: BSD-3-Clause
"""Products in integer instructions alone, ended by rounding shifts (src/isa/linear/shifts.h).

The kernels multiply 8 bits by 8 into int32. Wider operands are 8-bit halves, the high one signed
and the low one unsigned: x = 2^8 high + low, and the same of their zero points. What halves give is
added from the highest power of two down, each time shifted by what lies between: in int32 where
`largest` proves that all of it fits (what wraps on the way comes back), else in int64. Then, too, k
is cut into pieces whose products int32 is proven to hold.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from blockscale.core.arithmetic.sums import FARTHEST_LEFT, accumulator
from blockscale.core.operand import Operand
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.kernels.cpu import _native
from blockscale.kernels.cpu.integer.whole import TYPES
from blockscale.kernels.cpu.native import (
    addresses,
    channels_last,
    fingerprint,
    lies_first,
    native,
    threads,
)
from blockscale.kernels.operand import in_order, new
from blockscale.kernels.resident import Residents

CODES = {torch.int8: "int8", torch.uint8: "uint8"}
OF_X = {d: (torch.iinfo(d).min, torch.iinfo(d).max) for d in (torch.int8, torch.uint8, torch.int16)}
OF_WEIGHT = (torch.int8, torch.int16)
# as `Rounding` of src/spec.h counts them
_ROUNDINGS = ("nearest_even", "nearest_away", "toward_zero", "down", "up")
PANEL = 32  # outputs that lie together: `kPanel` of src/linear.h
DIRECT = 256  # products of codes that float32 sums exactly: `kHeld` of direct.cpp
_BEYOND = 17  # bits to the left after which anything but 0 is more than any code of 16 bits
# codes whose products int32 holds: 2^16 · 255 · 128 < 2^31, of a weight's low half 2^15 · 255 · 255
_LONGEST = {torch.int8: 2**16, torch.int16: 2**15}

End = tuple[Tensor, int, int, int, str]  # shift, zero, low, high, fmt: what all integer ops end in


class _Step(NamedTuple):
    """One product of 8 bits by 8.

    half:     of x: 0 is all of it or the high one
    channels: of x, from and to
    weights:  a _native.LinearWeight for each matrix of a batch; one of a layer
    left_shift:     by what the sums so far are shifted before its own are added
    """

    half: int
    channels: tuple[int, int]
    weights: tuple[Any, ...]
    left_shift: int


class Places(NamedTuple):
    """Of a convolution.

    numbers: as `window` of src/bind_linear.cpp takes them; () without
    groups:  where up to `DIRECT` products are summed without patches; else 0
    """

    numbers: tuple[int, ...] = ()
    groups: int = 0


class Multipliers(NamedTuple):
    """What is made of a weight, its bias and its shifts.

    steps:  of halves and pieces, in order
    wide:   whether sums are int64
    sums:   how all steps but the last end: in sums; ends: how the last one does. `Shifts` of
            src/linear.h
    guard:  the _native.LinearWeight that sees changes of the weight which torch does not count
    memory: what the others read
    """

    steps: tuple[_Step, ...]
    wide: bool
    sums: Tensor
    ends: Tensor
    guard: Any
    memory: tuple[Any, ...]


def takes(x: Tensor, weight: Tensor, x_zero: int, fmt: str) -> bool:
    """Whether the kernels multiply these, and end in codes of fmt or in sums."""
    if weight.dtype not in OF_WEIGHT or not x.numel() * weight.numel():
        return False
    return is_code(x, x_zero) and (not fmt or ends_in(fmt))


def is_code(x: Tensor, zero: int) -> bool:
    """Whether the kernels multiply codes of this dtype, with this zero point."""
    range_ = OF_X.get(x.dtype)
    return range_ is not None and range_[0] <= zero <= range_[1]


@lru_cache(256)
def ends_in(fmt: str) -> bool:
    """Whether shifts end in codes of this format: one an element, rounded without chance."""
    form = parse(fmt)
    dtype = form.element.code_dtype
    return form.bits in (8, 16) and dtype in OF_X and form.rounding in _ROUNDINGS


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, x_zero: int, largest: int, end: End
) -> Tensor:
    """Codes x [..., k] that `takes` has seen, weight [n, k], bias [n] -> codes or sums [..., n]."""
    multipliers = kept_of(x, weight, bias, largest, end, weight.shape[1])
    return run(multipliers, x, x_zero, Places(), (*x.shape[:-1], weight.shape[0]), end)


def multiplies(a: Tensor, b: Tensor, a_zero: int, b_zero: int, fmt: str) -> bool:
    """Whether `matmul` takes these."""
    if min(a.ndim, b.ndim) < 2 or a.shape[-1] != b.shape[-2] or not a.numel() * b.numel():
        return False
    batches = zip(reversed(a.shape[:-2]), reversed(b.shape[:-2]), strict=False)
    if any(m != n and 1 not in (m, n) for m, n in batches):
        return False
    return is_code(a, a_zero) and is_code(b, b_zero) and (not fmt or ends_in(fmt))


def matmul(a: Tensor, b: Tensor, a_zero: int, b_zero: int, largest: int, end: End) -> Tensor:
    """Codes a [..., m, k] and b [..., k, n] that `multiplies` has seen -> codes or sums
    [..., m, n]: the columns of a matrix are a weight's rows, for this call alone."""
    (k, n), batch = b.shape[-2:], torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    if b.numel() > k * n:
        a, b = a.expand(*batch, *a.shape[-2:]), b.expand(*batch, k, n)
    key = key_of(a, largest, end[4])
    ends = _ENDS[Operand(end[0], end[0], None, None, key, n)]
    columns = _columns_of(b)
    steps, memory = _steps(columns, k, b_zero, ends.wide, "halves" in key)
    multipliers = ends._replace(steps=steps, memory=(*memory, columns))
    return run(multipliers, a, a_zero, Places(), (*batch, a.shape[-2], n), end)


def _columns_of(x: Tensor) -> Tensor:
    """x [..., k, n] of one or two bytes -> [matrices, n, k] in order."""
    if x.mT.is_contiguous():
        return x.mT.reshape(-1, *x.mT.shape[-2:])
    whole = in_order(x).reshape(-1, *x.shape[-2:])
    matrices, k, n = whole.shape
    y = new((matrices, n, k), x.dtype)
    _native.transpose(x.itemsize, whole.data_ptr(), matrices, k, n, y.data_ptr(), threads())
    return y


def run(
    multipliers: Multipliers,
    x: Tensor,
    x_zero: int,
    places: Places,
    shape: tuple[int, ...],
    end: End,
) -> Tensor:
    """Codes x -> codes or sums [*shape]."""
    _, zero, low, high, fmt = end
    sums = torch.int64 if multipliers.wide else torch.int32
    y = new(shape, _code_dtype(fmt) if fmt else sums)
    last, count = len(multipliers.steps) - 1, len(multipliers.steps[0].weights)
    before = new(shape, sums) if last else None
    halves, channels = _halves(x, x_zero), x.shape[-1]
    rows = y.numel() // (shape[-1] * count)
    for i, step in enumerate(multipliers.steps):
        part, point = halves[step.half]
        first, end_of = step.channels
        numbers = places.numbers
        if places.groups <= 1 and end_of - first != channels:
            part = part[..., first:end_of].contiguous()
            numbers = (*numbers[:-1], end_of - first) if numbers else ()
        to, ends, ending = y, multipliers.ends, (fmt, zero, low, high)
        if before is not None and i < last:
            to, ends, ending = before, multipliers.sums, ("", 0, 0, 0)
        handle, how = _form(part.dtype).handle, _ending(*ending, multipliers.wide)
        at = (part.data_ptr(), to.data_ptr(), ends.data_ptr())
        so_far = before.data_ptr() if before is not None and i else 0
        for weight in step.weights:
            ran = weight.shifts(
                handle, at[0], rows, point, numbers, places.groups, at[1], (at[2], so_far),
                multipliers.wide, step.left_shift, how, threads(),
            )  # fmt: skip
            assert ran, "int8 by int8 under the scale 1"
            if count > 1:  # each of the next matrix
                of_ends = ends[0].nbytes if ends.ndim == 3 else 0
                at = (at[0] + part.numel() // count, at[1] + to.nbytes // count, at[2] + of_ends)
                so_far += before.nbytes // count if so_far and before is not None else 0
    return y


def _halves(x: Tensor, zero: int) -> list[tuple[Tensor, int]]:
    """x and its zero point in 8 bits: itself, or the high and the low half."""
    codes = channels_last(x.movedim(-1, 1)) if lies_first(x) else in_order(x)
    if codes.dtype != torch.int16:
        return [(codes, zero)]
    return [((codes >> 8).to(torch.int8), zero >> 8), (codes.to(torch.uint8), zero & 255)]


@lru_cache(256)
def _code_dtype(fmt: str) -> torch.dtype:
    return parse(fmt).element.code_dtype


@lru_cache(4)
def _form(dtype: torch.dtype) -> Any:
    return native(f"{CODES[dtype]}:tensor:fp32:asym")


@lru_cache(256)
def _ending(fmt: str, zero: int, low: int, high: int, wide: bool) -> tuple[int, ...]:
    """Type, rounding, zero, low, high of `Shifts` of src/linear.h."""
    if fmt:
        form = parse(fmt)
        kind, rounding = TYPES[form.element.code_dtype], _ROUNDINGS.index(form.rounding)
        return kind, rounding, zero, low, high
    ends = torch.iinfo(torch.int64 if wide else torch.int32)
    if low == high:
        low, high = ends.min, ends.max
    return TYPES[torch.int32], 0, 0, max(low, ends.min), min(high, ends.max)


def kept_of(
    x: Tensor, weight: Tensor, bias: Tensor | None, largest: int, end: End, channels: int
) -> Multipliers:
    """channels: of a cell, of which the rows of the weight have several one after another."""
    key = key_of(x, largest, end[4])
    return _READY[Operand(weight, end[0], bias, None, key, channels)]


def key_of(x: Tensor, largest: int, fmt: str) -> str:
    """What a weight is made ready for, beside its tensors."""
    return _key(largest, x.dtype, not fmt)


@lru_cache(1024)
def _key(largest: int, x: torch.dtype, sums: bool) -> str:
    wide, halves = accumulator(largest) == torch.int64, x == torch.int16
    return " ".join(("wide" * wide, "halves" * halves, "sums" * sums))


def make(weight: Operand) -> Multipliers:
    """weight: [n, k] as codes; the shift as scale; the bias as zero_point; what `key`
    says as fmt; channels of a cell as size."""
    codes = in_order(weight.codes)
    multipliers = _without_steps(weight.scale, weight.zero_point, weight.fmt, codes.shape[0])
    steps, memory = _steps(codes[None], weight.size, None, multipliers.wide, "halves" in weight.fmt)
    guard, read = guard_of(codes)
    memory += read if codes is weight.codes else (*read, codes)
    return multipliers._replace(steps=steps, guard=guard, memory=memory)


def stacked(
    codes: Tensor, bias: Tensor | None, shift: Tensor, key: str, channels: int
) -> Multipliers:  # fmt: skip
    """Weights [matrices, n, k] in order, of so many channels a cell, bias and shift [matrices, n]
    (or shift [1]), as `Multipliers` without a guard: x and what comes out are as many stacks."""
    matrices, n, _ = codes.shape
    multipliers = _without_steps(shift.max()[None], None, key, n)
    steps, memory = _steps(codes, channels, None, multipliers.wide, "halves" in key)
    each = [
        _ends(n, None if bias is None else bias[i], shift if shift.numel() == 1 else shift[i],
              multipliers.wide, "sums" in key)
        for i in range(matrices)
    ]  # fmt: skip
    return multipliers._replace(steps=steps, ends=torch.stack(each), memory=(*memory, codes))


def guard_of(codes: Tensor) -> tuple[Any, tuple[Tensor, ...]]:
    """What sees changes of a weight [n, k] in order that torch does not count, and its memory."""
    (guard,), memory = _weights(codes.view(torch.int8)[None], None)
    return guard, memory


def is_unchanged(multipliers: Any) -> bool:
    """Whether the guard of the weight's memory sees no change."""
    return bool(multipliers.guard.unchanged())


def _without_steps(shift: Tensor, bias: Tensor | None, key: str, n: int) -> Multipliers:
    """How n outputs end."""
    sums = "sums" in key
    wide = "wide" in key or (not sums and int(shift.max()) > FARTHEST_LEFT)
    none = torch.zeros(1, dtype=torch.int32)
    ends = _ends(n, bias, shift, wide, sums)
    return Multipliers((), wide, _ends(n, None, none, wide, True), ends, None, ())


def _steps(
    codes: Tensor, channels: int, zero: int | None, wide: bool, halves: bool
) -> tuple[tuple[_Step, ...], tuple[Tensor, ...]]:
    """Codes [matrices, n, k] in order -> their products in order, and memory beside the codes.

    zero: the zero point of codes that have one; halves: whether x has two
    """
    matrices, n, k = codes.shape
    cells = k // channels
    longest = _LONGEST[codes.dtype if zero is None else torch.int16]
    most = max(longest // cells, 1) if wide else channels
    ready: dict[tuple[int, int, int], tuple[Any, ...]] = {}
    memory: tuple[Tensor, ...] = ()
    for half, (part, point) in enumerate(_parts(codes, zero)):
        for first in range(0, channels, most):
            last = min(first + most, channels)
            piece = part
            if last - first != channels:
                piece = part.reshape(matrices, n, cells, channels)[..., first:last]
                piece = piece.reshape(matrices, n, -1).contiguous()
            ready[half, first, last], read = _weights(piece, point)
            memory += read if piece is codes else (*read, piece)
    order = sorted(
        ((x, *each) for x in range(1 + halves) for each in ready),
        key=lambda each: each[0] + each[1],
    )
    levels = [x + half for x, half, *_ in order]
    steps = tuple(
        _Step(x, (first, last), ready[half, first, last], 8 * (level - before))
        for (x, half, first, last), before, level in zip(
            order, [levels[0], *levels], levels, strict=False
        )
    )
    return steps, memory


def _parts(codes: Tensor, zero: int | None) -> list[tuple[Tensor, int | None]]:
    """Codes in 8 bits and their zero point: themselves, or the high and the low half."""
    if codes.dtype != torch.int16:
        return [(codes, zero)]
    high, low = (None, None) if zero is None else (zero >> 8, zero & 255)
    return [((codes >> 8).to(torch.int8), high), (codes.to(torch.uint8), low)]


def _weights(codes: Tensor, zero: int | None) -> tuple[tuple[Any, ...], tuple[Tensor, ...]]:
    """Codes [matrices, n, k] in order as _native.LinearWeights, and memory beside the codes."""
    matrices, n, k = codes.shape
    one, kind = torch.ones(n, 1), "full" if codes.dtype == torch.int8 else ""
    parts = QParams(one)
    if zero is not None:
        kind, parts = "asym", QParams(one, None, torch.full((n, 1), zero, dtype=torch.int32))
    form = native(":".join((CODES[codes.dtype], "channel0", "fp32", *filter(None, [kind]))))
    at, size, there = codes.data_ptr(), n * k, addresses(parts)
    weights = (
        _native.LinearWeight(form.handle, n, k, at + i * size, there) for i in range(matrices)
    )
    return tuple(weights), tuple(part for part in parts if part is not None)


def _ends(n: int, bias: Tensor | None, shift: Tensor, wide: bool, sums: bool) -> Tensor:
    """bias [n], shift [n] or [1] -> `ends` of `Shifts` of src/linear.h."""
    dtype = torch.int64 if wide else torch.int32
    top = torch.iinfo(dtype).max
    ends = torch.zeros(5, -(-n // PANEL) * PANEL, dtype=dtype)
    ends[2], ends[3] = 1, top
    each = shift.to(torch.int64).expand(n)
    right, left = each.clamp(min=0), (-each).clamp(0, FARTHEST_LEFT if sums else _BEYOND)
    if bias is not None:
        ends[0, :n] = bias
    ends[1, :n], ends[4, :n] = right, left
    ends[2, :n] = torch.where(right > 0, torch.ones_like(right) << (right - 1).clamp(min=0), 1)
    if not sums:
        ends[3, :n] = torch.where(left > 0, (top // 2 + 1) >> left, top)
    return ends


_READY = Residents(make, fingerprint, is_unchanged)
# of products of two tensors, beside their shift
_ENDS = Residents(lambda of: _without_steps(of.codes, None, of.fmt, of.size), fingerprint)
