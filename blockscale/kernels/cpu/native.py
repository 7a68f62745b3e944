# SPDX-License-Identifier: BSD-3-Clause
"""What the native kernels take: a Format as numbers, tensors as addresses that were checked, and
weights made ready."""

import os
from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.element import ElementNumbers
from blockscale.core.format import Format
from blockscale.core.operand import Operand
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.core.scales import TwoLevel
from blockscale.kernels.cpu import _native
from blockscale.kernels.numbers import FormatNumbers, lowered, supports_families
from blockscale.kernels.operand import Storage, in_order, new
from blockscale.kernels.registry import ByFormats
from blockscale.kernels.resident import Residents, tensors

FAMILIES = ("integer", "minifloat", "binary", "codebook")  # of elements: `Family` of src/spec.h
FEATURES = ("nd", "offset", "float_zero")  # FormatNumbers.features
known = ByFormats(supports_families(FAMILIES, FEATURES))  # and every dtype, shape and layout
UNKNOWN = ("features",)  # to the C++: `known` is what asks for them
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}

Parts = tuple[int, int, int, int]  # addresses of scale, outer, zero point, offset; 0 for none
NO_PARTS = (0, 0, 0, 0)
threads = torch.get_num_threads
_may_have_threads = False  # whether kernels may have run on several threads


def _after_fork() -> None:
    """A child has none of OpenMP's threads, for which kernels, and torch itself, would wait for
    ever: it goes on with one thread, as torch's own data loaders do."""
    if _may_have_threads:
        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class NativeFormat(Storage):
    """A format as the C++ kernels take it."""

    handle: Any  # the _native.NativeFormat

    def __init__(self, fmt: Format):
        super().__init__(fmt)
        inner = native(fmt.scale.inner.spelling).handle if isinstance(fmt.scale, TwoLevel) else None
        block = [number for pair in fmt.block.sizes for number in pair]
        self.handle = _native.NativeFormat(_spec(lowered(fmt)), block, fmt.block.rest, inner)

    def packs(self, shape: Sequence[int]) -> bool:
        """Whether rows of codes fill whole bytes, so that kernels pack as they go."""
        return self.bytewise or len(shape) < 2 or shape[-1] * self.bits % 8 == 0


@cache
def native(spelling: str) -> NativeFormat:
    """The format of this name or spelling for the kernels."""
    global _may_have_threads  # noqa: PLW0603 - of the process, as OpenMP's threads are
    _may_have_threads = True
    return NativeFormat(parse(spelling))


def addresses(parts: QParams) -> Parts:
    """Where the parts lie; whoever calls keeps them alive."""
    scale, outer, zero_point, offset = parts[:4]
    return (
        scale.data_ptr(),
        0 if outer is None else outer.data_ptr(),
        0 if zero_point is None else zero_point.data_ptr(),
        0 if offset is None else offset.data_ptr(),
    )


def floats(x: Tensor) -> tuple[Tensor, int]:
    """x in order, and its dtype's number. Raises TypeError as the reference does.

    Raises ValueError for a tensor that is not on the CPU.
    """
    if not x.is_cpu:
        raise ValueError(f"expected a tensor on the CPU, found one on {x.device}")
    kind = DTYPES.get(x.dtype)
    if kind is None:
        reference.widen(x)
        raise AssertionError("the reference takes a dtype that the kernels do not")
    if x.is_contiguous() and x.data_ptr() % x.itemsize == 0:  # nearly always: a call less
        return x, kind
    return in_order(x), kind


def channels_last(x: Tensor) -> Tensor:
    """x [batch, channels, *size], elements of 1, 2 or 4 bytes -> [batch, *size, channels]."""
    last = x.movedim(1, -1)
    if last.is_contiguous():
        return last
    x = x.contiguous()
    batch, channels, *size = x.shape
    y = new((batch, *size, channels), x.dtype)
    if x.numel():
        pixels = prod(size)
        _native.transpose(
            x.itemsize, x.data_ptr(), batch, channels, pixels, y.data_ptr(), threads()
        )
    return y


def channels_first(x: Tensor) -> Tensor:
    """x [batch, channels, *size], elements of 1, 2 or 4 bytes, in order."""
    if x.is_contiguous() or x.ndim < 3 or not x.movedim(1, -1).is_contiguous() or not x.numel():
        return in_order(x)
    batch, channels, *size = x.shape
    y = new(x.shape, x.dtype)
    _native.transpose(
        x.itemsize, x.data_ptr(), batch, prod(size), channels, y.data_ptr(), threads()
    )
    return y


def lies_first(x: Tensor) -> bool:
    """Whether x [batch, *size, channels] lies channels first, which `channels_last` turns sooner
    than torch does."""
    return x.ndim > 2 and not x.is_contiguous() and x.movedim(-1, 1).is_contiguous()


def seed_words(native: NativeFormat, seed: Tensor | None) -> tuple[int, int]:
    """The seed and the index of the first element; 0, 0 where none is needed."""
    if not native.needs_seed:
        return 0, 0
    words = native.checked_seed(seed)
    assert words is not None
    key, *first = words.reshape(-1).tolist()
    return key, first[0] if first else 0


def _spec(numbers: FormatNumbers) -> Any:
    """The numbers as the struct `Spec` of src/spec.h."""
    inner = None if numbers.inner is None else _native.Element(**_fields_of(numbers.inner))
    by_name = {"element": _native.Element(**_fields_of(numbers.element)), "inner": inner}
    return _native.Spec(**(_fields_of(numbers) | by_name))


def _fields_of(numbers: FormatNumbers | ElementNumbers) -> dict[str, Any]:
    """The fields of a dataclass by name."""
    return {
        field.name: getattr(numbers, field.name)
        for field in fields(numbers)
        if field.name not in UNKNOWN
    }


# Weights made ready for the linear kernels, and kept beside them (blockscale.kernels.resident).


class Ready(NamedTuple):
    """weight: a _native.LinearWeight; copies: what it reads in the place of tensors of ours."""

    weight: Any
    copies: tuple[Tensor, ...]


def linear_weight(weight: Operand) -> Any:
    """The `_native.LinearWeight` of a weight [n, k]. It reads its memory later, too: keep it.

    Raises ValueError if its parts do not fit the format.
    """
    return _READY[weight].weight


def ready_of(weight: Operand) -> Ready:
    """A weight [n, k] made ready, kept nowhere. Raises as `linear_weight`."""
    n, codes = native(weight.fmt), weight.codes
    if codes.ndim != 2:
        raise ValueError(f"{n.format}: a linear weight's codes must be [n, k], found {codes.shape}")
    shape = (codes.shape[0], weight.size)
    in_row_order = n.checked_codes(codes, shape)
    parts = n.checked_parts(shape, weight.scale, weight.zero_point, weight.outer, more=weight.more)
    handle = _native.LinearWeight(n.handle, *shape, in_row_order.data_ptr(), addresses(parts))
    originals = {id(part) for part in tensors(weight)}
    memory = (in_row_order, *parts)
    copies = tuple(part for part in memory if part is not None and id(part) not in originals)
    return Ready(handle, copies)


def fingerprint(part: Tensor) -> int:
    """A number that changes with a tensor's bytes."""
    whole = part.contiguous()
    value: int = _native.fingerprint(whole.data_ptr(), whole.nbytes, threads())
    return value


_READY = Residents(ready_of, fingerprint, lambda ready: bool(ready.weight.unchanged()))
