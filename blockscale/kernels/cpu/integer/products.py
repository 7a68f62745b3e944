"""Products of codes by the integer kernels of float-scaled codes, under scales of 2^-shift."""

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from blockscale.core.arithmetic.precision import float32_inside
from blockscale.core.format import Format
from blockscale.core.layout import from_stored, grouped_layout
from blockscale.core.operand import Operand
from blockscale.core.reference import QParams
from blockscale.kernels.cpu.conv import CONV, window
from blockscale.kernels.cpu.fused_linear import Result, from_codes
from blockscale.kernels.cpu.integer.ending import (
    CODES,
    clamped,
    ended,
    holds,
    limits,
    quantizer,
    scales,
    supports_sums,
    unshifted,
    whole,
)
from blockscale.kernels.cpu.native import native
from blockscale.kernels.cpu.prepack import Ready, fingerprint, ready_of
from blockscale.kernels.operand import in_order
from blockscale.kernels.registry import kernel
from blockscale.kernels.resident import Residents

_WEIGHT = "int8:channel0:fp32:full"


class _Kept(NamedTuple):
    """A weight made ready; the memory that it reads: scales [n, 1]; its bias [n] in float32."""

    ready: Ready
    scale: Tensor
    bias: Tensor | None


def _make(weight: Operand) -> _Kept:
    """weight: codes [n, k] int8; scale: the shift, int32; zero_point: the bias, int32."""
    n = weight.codes.shape[0]
    scale = scales(weight.scale).expand(n).contiguous()
    bias = None if weight.zero_point is None else weight.zero_point.to(torch.float32) * scale
    stored = scale.reshape(n, 1)
    ready = ready_of(Operand(weight.codes, stored, None, None, _WEIGHT, weight.size))
    return _Kept(ready, stored, bias)


_READY = Residents(_make, fingerprint, lambda kept: bool(kept.ready.weight.unchanged()))


@lru_cache(256)
def _of_x(dtype: torch.dtype, zero: int) -> tuple[Any, QParams]:
    """The native format of codes x, and the parts beside them: the scale 1."""
    form = native(f"{CODES[dtype]}:tensor:fp32:asym")
    return form, QParams(torch.ones(1), None, torch.full((1,), zero, dtype=torch.int32))


def _sixteen_bits(x: Tensor, weight: Tensor) -> bool:
    small = x.dtype in (*CODES, torch.int16) and weight.dtype in (torch.int8, torch.int16)
    return small and x.numel() > 0 and weight.numel() > 0


def _eight_bits(x: Tensor, weight: Tensor) -> bool:
    return x.dtype in CODES and weight.dtype == torch.int8


def _supports_linear(formats: tuple[Format, ...], arguments: tuple[Any, ...]) -> bool:
    del formats
    x, weight, _bias, _zero, largest, shift, *_, fmt = arguments
    return _sixteen_bits(x, weight) and supports_sums(largest, shift, fmt)


@kernel("integer_linear", backend="cpu", supports=_supports_linear)
def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, x_zero: int, largest: int, shift: Tensor,
    zero: int, low: int, high: int, fmt: str,
) -> Tensor:  # fmt: skip
    """As ops.integer.products.linear."""
    float_, end = holds(unshifted(largest, shift, fmt)), (zero, low, high, fmt)
    if float_ == torch.float32 and _eight_bits(x, weight):
        shape = (*x.shape[:-1], weight.shape[0])
        made = _product(in_order(x), weight, bias, x_zero, shift, shape, (), end, largest)
        if made is not None:
            return made
    with float32_inside(x):
        acc = (x.to(float_) - x_zero) @ weight.to(float_).t()
    return ended(acc if bias is None else acc + bias, shift, *end, largest)


def _product(
    x: Tensor, weight: Tensor, bias: Tensor | None, x_zero: int, shift: Tensor,
    shape: tuple[int, ...], places: Any, end: tuple[int, int, int, str], largest: int,
) -> Tensor | None:  # fmt: skip
    """By the integer kernels; None where they cannot give it."""
    zero, low, high, fmt = end
    kept = _READY[Operand(weight, shift, bias, None, _WEIGHT, weight.shape[1])]
    form, parts = _of_x(x.dtype, x_zero)
    relu = bool(fmt) and low == zero != limits(fmt)[0] and high == limits(fmt)[1]
    result = Result(
        kept.bias, "relu" if relu else "", torch.float32, quantizer(fmt, zero, len(shape))
    )
    made = from_codes(kept.ready.weight, x, parts, form, 0, places, shape, result)
    if made is None:
        return None
    if fmt:
        return made[0] if relu else clamped(made[0], low, high, fmt)
    return whole(made[0], low, high, largest)


def _supports_conv(formats: tuple[Format, ...], arguments: tuple[Any, ...]) -> bool:
    del formats
    x, weight, *_, largest, shift, _zero, _low, _high, fmt = arguments
    return _sixteen_bits(x, weight) and supports_sums(largest, shift, fmt)


@kernel("integer_conv", backend="cpu", supports=_supports_conv)
def conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, shape: list[int], stride: list[int],
    padding: list[int], dilation: list[int], groups: int, transposed: bool,
    output_padding: list[int], x_zero: int, largest: int, shift: Tensor, zero: int, low: int,
    high: int, fmt: str,
) -> Tensor:  # fmt: skip
    """As ops.integer.products.conv."""
    float_ = holds(unshifted(largest, shift, fmt))
    exact = float_ == torch.float32
    if exact and not transposed and groups == 1 and _eight_bits(x, weight):
        form = f"{CODES[x.dtype]}:tensor:fp32:asym"
        places = window(x.shape, shape, (stride, padding, dilation), form)
        if places is not None:
            end = (zero, low, high, fmt)
            rows = in_order(x)
            made = _product(
                rows, weight, bias, x_zero, shift, places.shape, places.numbers, end, largest
            )
            if made is not None:
                return made
    values = (x.to(float_) - x_zero).movedim(-1, 1)
    offset = None if bias is None else bias.to(float_)
    stored = weight.to(float_)
    with float32_inside(x):
        if transposed:
            dense = from_stored(stored, grouped_layout(groups), shape)
            more = [*output_padding] or [0] * len(stride)
            run = _TRANSPOSED[len(shape) - 2]
            y = run(values, dense, offset, stride, padding, more, groups, dilation)
        else:
            dense = from_stored(stored, "channels_last", shape)
            y = CONV[len(shape) - 2](values, dense, offset, stride, padding, dilation, groups)
    return ended(y.movedim(1, -1).contiguous(), shift, zero, low, high, fmt, largest)


_TRANSPOSED = {
    1: torch.nn.functional.conv_transpose1d,
    2: torch.nn.functional.conv_transpose2d,
    3: torch.nn.functional.conv_transpose3d,
}


def _supports_matmul(formats: tuple[Format, ...], arguments: tuple[Any, ...]) -> bool:
    del formats
    a, b, _a_zero, _b_zero, largest, shift, *_, fmt = arguments
    return a.numel() > 0 and b.numel() > 0 and supports_sums(largest, shift, fmt)


@kernel("integer_matmul", backend="cpu", supports=_supports_matmul)
def matmul(
    a: Tensor, b: Tensor, a_zero: int, b_zero: int, largest: int, shift: Tensor, zero: int,
    low: int, high: int, fmt: str,
) -> Tensor:  # fmt: skip
    """As ops.integer.products.matmul."""
    float_ = holds(unshifted(largest, shift, fmt))
    with float32_inside(a):
        acc = torch.matmul(a.to(float_) - a_zero, b.to(float_) - b_zero)
    return ended(acc, shift, zero, low, high, fmt, largest)
