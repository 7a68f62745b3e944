# SPDX-License-Identifier: BSD-3-Clause
"""Transposed convolutions: an integer product of x with each place of the kernel, added up where
places of x reach the same output; else torch's own in float32.
"""

from collections.abc import Sequence
from functools import cache
from itertools import product
from math import gcd, prod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core.arithmetic.precision import float32_inside
from blockscale.core.block import WHOLE
from blockscale.core.format import Format
from blockscale.core.operand import UNQUANTIZED, Operand, Quantizer, Value
from blockscale.core.pack import from_stored, grouped_layout
from blockscale.core.reference import QParams
from blockscale.kernels.cpu.linear import (
    Result,
    as_integers,
    finish,
    from_codes,
    given_parts,
    row_block,
    takes,
)
from blockscale.kernels.cpu.native import fingerprint, floats, known, native, ready_of
from blockscale.kernels.cpu.quantize import choose_qparams, dequantize, fake_quantize
from blockscale.kernels.registry import kernel
from blockscale.kernels.resident import Residents

RUN = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
_PRODUCTS = 4 << 20  # bytes of products at a time
_CHANNELS = 32  # with fewer, moving the products costs more than they save (measured)
_ADDED = 32  # products that one output adds up in float32, at most: half of what the op allows

Sizes = list[int]


@kernel("conv_transpose", backend="cpu", supports=known)
def conv_transpose(
    x: Tensor,
    weight: Operand,
    bias: Tensor | None,
    shape: Sizes,
    stride: Sizes,
    padding: Sizes,
    output_padding: Sizes,
    dilation: Sizes,
    groups: int,
    input: Quantizer = UNQUANTIZED,
) -> Tensor:
    """As ops.conv_transpose.conv_transpose."""
    row = prod(shape[2:]) * (shape[0] // groups)
    if row != weight.size:
        raise ValueError(
            f"a weight of shape {shape} in {groups} groups has rows of {row}, found {weight.size}"
        )
    if input.fmt and groups == 1:
        settings = stride, padding, output_padding, dilation
        y = _as_integers(x, weight, bias, shape, settings, input)
        if y is not None:
            return y
    dense = from_stored(dequantize(weight, torch.float32), grouped_layout(groups), shape)
    values = x.to(torch.float32)
    if input.fmt:
        values = fake_quantize(values.movedim(1, -1), input).movedim(-1, 1)
    else:
        floats(x)  # refuses what the reference refuses
    offset = None if bias is None else bias.to(torch.float32)
    with float32_inside(x):
        run = RUN[len(shape) - 2]
        y = run(values, dense, offset, stride, padding, output_padding, groups, dilation)
    return y.to(x.dtype).contiguous()


class Places(NamedTuple):
    """Where products go.

    sizes: of x; whole: of the result before its padding is cut off; kernel: its sizes
    steps: stride and dilation of each dimension
    crop:  the part of each dimension that remains
    """

    sizes: Sizes
    whole: Sizes
    kernel: Sizes
    steps: list[tuple[int, int]]
    crop: list[slice]

    @property
    def result_sizes(self) -> Sizes:
        """The sizes of the result."""
        return [each.stop - each.start for each in self.crop]

    def together(self, outputs: int) -> int:
        """How many of a batch are computed together, so that their products stay in a cache."""
        return max(1, _PRODUCTS // (4 * prod(self.sizes) * prod(self.kernel) * outputs))


def places_of(
    size: Sequence[int], shape: Sizes, settings: tuple[Sizes, Sizes, Sizes, Sizes]
) -> Places | None:
    """Where products of x go, whose size is [batch, *sizes, channels]; None where that cannot be or
    does not pay, and where torch raises an error of its own.

    settings: stride, padding, output padding, dilation
    """
    if len(size) != len(shape):
        return None
    (batch, *sizes, channels), kernel = size, shape[2:]
    dims = list(zip(sizes, kernel, *settings, strict=True))
    over = prod(-(-k // (s // gcd(s, d))) for _, k, s, _, _, d in dims)
    if channels != shape[0] or channels < _CHANNELS or over > _ADDED or min(batch, *sizes) <= 0:
        return None
    whole = [(n - 1) * s + d * (k - 1) + 1 + more for n, k, s, _, more, d in dims]
    crop = [slice(dim[3], n - dim[3]) for n, dim in zip(whole, dims, strict=True)]
    odd = any(more >= max(s, d) for _, _, s, _, more, d in dims)
    if odd or any(each.stop <= each.start for each in crop):
        return None
    return Places(sizes, whole, kernel, [(dim[2], dim[5]) for dim in dims], crop)


def _as_integers(
    x: Tensor,
    weight: Operand,
    bias: Tensor | None,
    shape: Sizes,
    settings: tuple[Sizes, Sizes, Sizes, Sizes],
    by: Quantizer,
) -> Tensor | None:
    """The same by integer arithmetic, or None where that cannot give it or does not pay."""
    size = (*x.shape[:1], *x.shape[2:], *x.shape[1:2])
    places, block = places_of(size, shape, settings), row_block(by.fmt, x.ndim)
    if places is None or block is None or (block and by.scale is not None):
        return None
    count, outputs = prod(places.kernel), shape[1]
    ready = None if by.format.rounding == "stochastic" else by_places(count)[weight]
    if ready is None:
        return None
    if block == 0 and by.scale is None:  # one scale for all of x, which comes in parts
        scale, *more = choose_qparams(x, by.fmt)
        by = Quantizer(scale, more[0] if more else None, None, by.fmt)
    y = torch.empty((x.shape[0], outputs, *places.result_sizes), dtype=x.dtype)
    together = places.together(outputs)
    for some, into in zip(x.split(together), y.split(together), strict=True):
        rows, _ = floats(some.movedim(1, -1))
        products = torch.empty(some.shape[0] * prod(places.sizes), count * outputs)
        if not as_integers(ready.weight, rows, block, by, None, products):
            return None
        into.copy_(add_up(products, bias, places).movedim(-1, 1))
    return y


def add_up(products: Tensor, bias: Tensor | None, places: Places) -> Tensor:
    """Products [rows, prod(kernel) * n], each added in its place -> [batch, *size, n] float32."""
    outputs = products.shape[-1] // prod(places.kernel)
    apart = products.view(-1, *places.sizes, *places.kernel, outputs)
    y = torch.zeros(apart.shape[0], *places.whole, outputs)
    if bias is not None:
        y += bias.to(torch.float32)
    for place in product(*map(range, places.kernel)):
        dims = zip(place, places.sizes, places.steps, strict=True)
        to = [slice(d * i, d * i + (n - 1) * s + 1, s) for i, n, (s, d) in dims]
        of_place = apart
        for i in place:
            of_place = of_place.select(1 + len(places.sizes), i)
        y[(slice(None), *to)] += of_place
    return y[(slice(None), *places.crop)]


class _PlaceWeight(NamedTuple):
    """weight: a _native.LinearWeight, which reads the memory of `operand` and `copies`."""

    weight: Any
    operand: Operand
    copies: tuple[Tensor, ...]


@cache
def by_places(places: int) -> Residents[_PlaceWeight | None]:
    """Weights [n, places * channels] as those of a linear layer [places * n, channels]; None for
    blocks that hold channels of several places, and codes that share a byte with the next place."""

    def make(weight: Operand) -> _PlaceWeight | None:
        rearrangement = _rows_by_place(weight, places)
        if rearrangement is None:
            return None
        ready = ready_of(rearrangement)
        return _PlaceWeight(ready.weight, rearrangement, ready.copies)

    return Residents(make, fingerprint)


def _rows_by_place(weight: Operand, places: int) -> Operand | None:
    """A weight [n, places * channels] -> the same as [places * n, channels], in other memory."""
    block, channels = weight.format.block, weight.size // places
    if block.flat or weight.more or channels * weight.format.element.bits % 8:
        return None
    rows, size = block.sizes_for(2)
    if (rows, size) != (WHOLE, WHOLE) and (rows != 1 or (size != WHOLE and channels % size)):
        return None
    if weight.outer is not None and weight.outer.numel() != 1:
        return None

    def turn(part: Tensor, entries: int) -> Tensor:
        """Entries of each place [n, places * entries]; of all places if that is 0."""
        if not entries:
            return part.clone() if rows == WHOLE else part.repeat(places, 1)
        return part.unflatten(1, (places, -1)).movedim(1, 0).flatten(0, 1).contiguous()

    zero_point = None if weight.zero_point is None else turn(weight.zero_point, size)
    outer = None if weight.outer is None else weight.outer.clone()
    codes, scale = turn(weight.codes, channels), turn(weight.scale, size)
    return Operand(codes, scale, zero_point, outer, weight.fmt, channels)


# Transposed convolutions of codes, channels last, and what follows them.

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
        result = RUN[len(stride)](values, dense, offset, *settings)
        sums = result.movedim(1, -1).to(dtype).contiguous()
    return finish(sums, Result(None, activation, dtype, y))


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
    y, at = torch.empty((size[0], *places.result_sizes, outputs), dtype=dtype), 0
    for into in y.split(places.together(outputs)):
        here = slice(at, at + into.shape[0])
        at = here.stop
        shape = (into.shape[0], *places.sizes, prod(places.kernel) * outputs)
        own, length = _part(parts, here) if block else parts, min(block, x.size)
        result = from_codes(ready.weight, codes[here], own, form, length, (), shape, _SUMS)
        if result is None:
            return None
        into.copy_(add_up(result[0].flatten(0, -2), bias, places))
    return y


def _part(parts: QParams, some: slice) -> QParams:
    """Those of some of a batch."""
    return QParams(*(None if part is None else part[some] for part in parts))  # type: ignore[arg-type]
