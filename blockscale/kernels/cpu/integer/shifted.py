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
from blockscale.kernels.cpu.conv import window
from blockscale.kernels.cpu.integer.whole import TYPES
from blockscale.kernels.cpu.native import native, threads
from blockscale.kernels.cpu.prepack import fingerprint, ready_of
from blockscale.kernels.operand import in_order, new
from blockscale.kernels.resident import Residents

CODES = {torch.int8: "int8", torch.uint8: "uint8"}
OF_X = (torch.int8, torch.uint8, torch.int16)
OF_WEIGHT = (torch.int8, torch.int16)
# as `Rounding` of src/spec.h counts them
_ROUNDINGS = ("nearest_even", "nearest_away", "toward_zero", "down", "up")
_PANEL = 32  # outputs that lie together: `kPanel` of src/linear.h
_BEYOND = 17  # bits to the left after which anything but 0 is more than any code of 16 bits
# codes whose products int32 holds: 2^16 · 255 · 128 < 2^31, of a weight's low half 2^15 · 255 · 255
_LONGEST = {torch.int8: 2**16, torch.int16: 2**15}

End = tuple[Tensor, int, int, int, str]  # shift, zero, low, high, fmt: what all integer ops end in


class _Step(NamedTuple):
    """One product of 8 bits by 8.

    half:     of x: 0 is all of it or the high one
    channels: of x, from and to
    weight:   a _native.LinearWeight
    left:     by what the sums so far are shifted before its own are added
    """

    half: int
    channels: tuple[int, int]
    weight: Any
    left: int


class _Kept(NamedTuple):
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
    if x.dtype not in OF_X or weight.dtype not in OF_WEIGHT or not x.numel() * weight.numel():
        return False
    range_ = torch.iinfo(x.dtype)
    return range_.min <= x_zero <= range_.max and (not fmt or ends_in(fmt))


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
    kept = _kept(x, weight, bias, largest, end, weight.shape[1])
    return _run(kept, x, x_zero, (), (*x.shape[:-1], weight.shape[0]), end)


def conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, shape: list[int],
    settings: tuple[list[int], list[int], list[int]], x_zero: int, largest: int, end: End,
) -> Tensor | None:  # fmt: skip
    """The same of x [batch, *size, c], and a weight [n, k] stored channels last; None where there
    are no places.

    settings: stride, padding, dilation
    """
    places = window(x.shape, shape, settings, "uint8:tensor:fp32:asym", always=True)
    if places is None:
        return None
    kept = _kept(x, weight, bias, largest, end, shape[1])
    return _run(kept, x, x_zero, tuple(places.numbers), places.shape, end)


def _run(
    kept: _Kept, x: Tensor, x_zero: int, places: tuple[int, ...], shape: tuple[int, ...], end: End
) -> Tensor:
    """places: of a convolution, as `window` of src/bind_linear.cpp takes them; () without."""
    _, zero, low, high, fmt = end
    sums = torch.int64 if kept.wide else torch.int32
    y = new(shape, _code_dtype(fmt) if fmt else sums)
    before = None if len(kept.steps) == 1 else new(shape, sums)
    halves, channels, rows = _halves(x, x_zero), x.shape[-1], y.numel() // shape[-1]
    for i, step in enumerate(kept.steps):
        codes, point = halves[step.half]
        first, last = step.channels
        part = codes if last - first == channels else codes[..., first:last].contiguous()
        numbers = (*places[:-1], last - first) if places else ()
        final = i + 1 == len(kept.steps)
        to = y if final or before is None else before
        of = (fmt, zero, low, high) if final else ("", 0, 0, 0)
        ends = kept.ends if final else kept.sums
        so_far = 0 if i == 0 or before is None else before.data_ptr()
        done = step.weight.shifts(
            _form(part.dtype).handle, part.data_ptr(), rows, point, numbers, to.data_ptr(),
            (ends.data_ptr(), so_far), kept.wide, step.left,
            _ending(*of, kept.wide), threads(),
        )  # fmt: skip
        assert done, "int8 by int8 under the scale 1"
    return y


def _halves(x: Tensor, zero: int) -> list[tuple[Tensor, int]]:
    """x and its zero point in 8 bits: itself, or the high and the low half."""
    codes = in_order(x)
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


def _kept(
    x: Tensor, weight: Tensor, bias: Tensor | None, largest: int, end: End, channels: int
) -> _Kept:
    """channels: of a cell, of which the rows of the weight have several one after another."""
    key = _key(accumulator(largest) == torch.int64, x.dtype == torch.int16, not end[4])
    return _READY[Operand(weight, end[0], bias, None, key, channels)]


@lru_cache(8)
def _key(wide: bool, halves: bool, sums: bool) -> str:
    """What a weight is made ready for, beside its tensors."""
    return " ".join(("wide" * wide, "halves" * halves, "sums" * sums))


def _make(given: Operand) -> _Kept:
    """given: a weight [n, k] as codes; the shift as scale; the bias as zero_point; what `_key`
    says as fmt; channels of a cell as size."""
    weight, shift, bias, channels = given.codes, given.scale, given.zero_point, given.size
    n, one = weight.shape[0], torch.ones(weight.shape[0], 1)
    sums = "sums" in given.fmt
    wide = "wide" in given.fmt or (not sums and int(shift.max()) > FARTHEST_LEFT)
    codes = in_order(weight)
    guard, memory = _weight(codes.view(torch.int8), one)
    memory += (one, codes) if codes is not weight else (one,)
    made, parts = {}, _parts(codes)
    cells = weight.shape[1] // channels
    most = max(_LONGEST[weight.dtype] // cells, 1) if wide else channels
    for half, part in enumerate(parts):
        for first in range(0, channels, most):
            last = min(first + most, channels)
            piece = part
            if last - first != channels:
                piece = part.reshape(n, cells, channels)[..., first:last].reshape(n, -1)
            made[half, first, last], kept = _weight(piece, one)
            memory += kept if piece is weight else (*kept, piece)
    of_x = (0, 1) if "halves" in given.fmt else (0,)
    order = sorted(((x, *key) for x in of_x for key in made), key=lambda each: each[0] + each[1])
    levels = [x + half for x, half, *_ in order]
    steps = tuple(
        _Step(x, (first, last), made[half, first, last], 8 * (level - before))
        for (x, half, first, last), before, level in zip(
            order, [levels[0], *levels], levels, strict=False
        )
    )
    none = torch.zeros(1, dtype=torch.int32)
    return _Kept(
        steps, wide, _ends(n, None, none, wide, True), _ends(n, bias, shift, wide, sums), guard,
        memory,
    )  # fmt: skip


def _parts(codes: Tensor) -> list[Tensor]:
    """A weight in 8 bits: itself, or its high and its low half."""
    if codes.dtype == torch.int8:
        return [codes]
    return [(codes >> 8).to(torch.int8), codes.to(torch.uint8)]


def _weight(codes: Tensor, one: Tensor) -> tuple[Any, tuple[Any, ...]]:
    """Codes [n, k] as a _native.LinearWeight, and memory of its own. one: [n, 1], the scale."""
    fmt = f"{CODES[codes.dtype]}:channel0:fp32" + ":full" * (codes.dtype == torch.int8)
    return ready_of(Operand(codes, one, None, None, fmt, codes.shape[1]))


def _ends(n: int, bias: Tensor | None, shift: Tensor, wide: bool, sums: bool) -> Tensor:
    """bias [n], shift [n] or [1] -> `ends` of `Shifts` of src/linear.h."""
    dtype = torch.int64 if wide else torch.int32
    top = torch.iinfo(dtype).max
    ends = torch.zeros(5, -(-n // _PANEL) * _PANEL, dtype=dtype)
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


_READY = Residents(_make, fingerprint, lambda kept: bool(kept.guard.unchanged()))
