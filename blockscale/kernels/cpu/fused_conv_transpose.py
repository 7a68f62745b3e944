# SPDX-License-Identifier: BSD-3-Clause
"""Transposed convolutions of codes, channels last, and what follows them."""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.operand import UNQUANTIZED, Quantizer, Value
from blockscale.core.pack import from_stored, grouped_layout
from blockscale.core.reference import QParams
from blockscale.kernels.cpu.conv_transpose import RUN, Places, Sizes, added, by_places, places_of
from blockscale.kernels.cpu.linear import (
    Result,
    finished,
    from_codes,
    given_parts,
    row_block,
    takes,
)
from blockscale.kernels.cpu.native import known, native
from blockscale.kernels.cpu.quantize import dequantize
from blockscale.kernels.registry import kernel

_SUMS = Result(None, "", torch.float32, UNQUANTIZED)  # what products are before they are added up


def _supports(formats: tuple[Format, ...], arguments: tuple[Any, ...]) -> bool:
    """Integer products, where they pay; what the op is composed of does the others as well."""
    x, weight, _, shape, *settings, groups, transposed, more, activation, dtype, _ = arguments
    if not transposed or groups != 1 or not x.fmt or not takes(x, weight, activation, dtype):
        return False
    if weight.size != prod(shape[2:]) * shape[0] or not known(formats, arguments):
        return False
    size = (*x.data.shape[:-1], x.size)
    if row_block(x.fmt, len(size)) is None or _places(size, shape, settings, more) is None:
        return False
    return by_places(prod(shape[2:]))[weight.operand] is not None


def _places(
    size: Sequence[int], shape: Sizes, settings: Sequence[Sizes], more: Sequence[int]
) -> Places | None:
    """settings: stride, padding, dilation; more: output padding, () for none."""
    stride, padding, dilation = settings
    return places_of(size, shape, (stride, padding, [*more] or [0] * len(stride), dilation))


@kernel("fused_conv", backend="cpu", supports=_supports)
def fused_conv(
    x: Value,
    weight: Value,
    bias: Tensor | None,
    shape: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int,
    transposed: bool,
    output_padding: Sequence[int],
    activation: str,
    dtype: torch.dtype,
    y: Quantizer,
) -> list[Tensor]:
    """As ops.fused.products.conv, of transposed ones."""
    del groups, transposed  # `_supports` has said what they are
    size = (*x.data.shape[:-1], x.size)
    places = _places(size, shape, (stride, padding, dilation), output_padding)
    assert places is not None
    sums = _by_integers(x, weight, bias, places, dtype)
    if sums is None:  # a scale or a zero point is out of the range of integer arithmetic
        values = dequantize(x.operand, torch.float32).movedim(-1, 1).contiguous()
        stored = dequantize(weight.operand, torch.float32)
        dense = from_stored(stored, grouped_layout(1), shape)
        offset = None if bias is None else bias.to(torch.float32)
        settings = stride, padding, [*output_padding] or [0] * len(stride), 1, dilation
        made = RUN[len(stride)](values, dense, offset, *settings)
        sums = made.movedim(1, -1).to(dtype).contiguous()
    return finished(sums, Result(None, activation, dtype, y))


def _by_integers(
    x: Value, weight: Value, bias: Tensor | None, places: Places, dtype: torch.dtype
) -> Tensor | None:
    """Sums with their bias [batch, *size, n] of `dtype`; None where integers cannot give them."""
    size, outputs = (*x.data.shape[:-1], x.size), weight.data.shape[0]
    form, ready = native(x.fmt), by_places(prod(places.kernel))[weight.operand]
    block = row_block(x.fmt, len(size))
    assert ready is not None
    assert block is not None
    codes, parts = form.checked_codes(x.data, size), given_parts(form, size, x)
    y, at = torch.empty((size[0], *places.left, outputs), dtype=dtype), 0
    for into in y.split(places.together(outputs)):
        here = slice(at, at + into.shape[0])
        at = here.stop
        shape = (into.shape[0], *places.sizes, prod(places.kernel) * outputs)
        own, length = _part(parts, here) if block else parts, min(block, x.size)
        made = from_codes(ready.weight, codes[here], own, form, length, (), shape, _SUMS)
        if made is None:
            return None
        into.copy_(added(made[0].flatten(0, -2), bias, places))
    return y


def _part(parts: QParams, some: slice) -> QParams:
    """Those of some of a batch."""
    return QParams(*(None if part is None else part[some] for part in parts))  # type: ignore[arg-type]
