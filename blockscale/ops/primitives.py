"""The primitives as torch ops. Codes are packed here (docs/numerics.md, section 6).

The scale, zero point and outer scale of an op are those of core.reference.QParams; what a format
does not have is None. `tensor.py` wraps these for people.
"""

from typing import Any

import torch
from torch import Tensor

from blockscale.core import pack as packing
from blockscale.core import reference
from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.ops import shapes
from blockscale.ops.op import differentiable, not_differentiable, op


def to_list(qparams: QParams) -> list[Tensor]:
    """The parts that a format has, in the order scale, outer, zero_point."""
    return [part for part in qparams if part is not None]


def from_list(parts: list[Tensor], fmt: Format) -> QParams:
    """What `to_list` made, read back."""
    scale, *rest = parts
    zero_point = rest.pop() if fmt.asym else None
    return QParams(scale, rest[0] if rest else None, zero_point)


@op(shape=shapes.choose_qparams)
def choose_qparams(x: Tensor, fmt: str) -> list[Tensor]:
    """x [...] -> [scale, outer scale (two levels only), zero point (asym only)]."""
    return to_list(reference.choose_qparams(x, parse(fmt)))


@op(shape=shapes.quantize)
def quantize(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    outer: Tensor | None,
    fmt: str,
    seed: Tensor | None,
) -> Tensor:
    """x [..., k] and its stored scale -> packed codes [..., packed_size(k)]."""
    form = parse(fmt)
    codes = reference.quantize(x, QParams(scale, outer, zero_point), form, seed)
    return packing.pack(codes, form.element).contiguous()


@op(shape=shapes.choose_quantize)
def choose_quantize(x: Tensor, fmt: str, seed: Tensor | None) -> list[Tensor]:
    """choose_qparams and quantize at once: [packed, *choose_qparams(x, fmt)]."""
    form = parse(fmt)
    qparams = reference.choose_qparams(x, form)
    codes = reference.quantize(x, qparams, form, seed)
    return [packing.pack(codes, form.element).contiguous(), *to_list(qparams)]


@op(shape=shapes.dequantize)
def dequantize(
    packed: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    outer: Tensor | None,
    fmt: str,
    size: int,
    dtype: torch.dtype,
) -> Tensor:
    """Packed codes of rows of `size` -> values [..., size] of `dtype`."""
    form = parse(fmt)
    codes = packing.unpack(packed, form.element, shapes.logical_shape(packed, scale, size))
    return reference.dequantize(codes, QParams(scale, outer, zero_point), form, dtype)


@op(shape=shapes.like_first)
def fake_quantize(
    x: Tensor,
    scale: Tensor | None,
    zero_point: Tensor | None,
    outer: Tensor | None,
    fmt: str,
    seed: Tensor | None,
) -> Tensor:
    """x [...] -> its values after a round trip, in x's dtype; without scale, x chooses it."""
    form = parse(fmt)
    qparams = _given_or_chosen(x, scale, zero_point, outer, form)
    return _strided_like(x, reference.fake_quantize(x, qparams, form, seed))


@op(shape=shapes.like_first)
def straight_through(
    gradient: Tensor,
    x: Tensor,
    scale: Tensor | None,
    zero_point: Tensor | None,
    outer: Tensor | None,
    fmt: str,
) -> Tensor:
    """The gradient of fake_quantize: that of its output where x is in range, 0 elsewhere."""
    form = parse(fmt)
    qparams = _given_or_chosen(x, scale, zero_point, outer, form)
    masked = torch.where(reference.in_range(x, qparams, form), gradient, 0.0)
    return _strided_like(gradient, masked)


@op()
def pack(codes: Tensor, fmt: str) -> Tensor:
    """Codes [..., k] -> packed [..., packed_size(k)]."""
    return packing.pack(
        codes, parse(fmt).element
    ).clone()  # an op's output must not alias its input


@op()
def unpack(packed: Tensor, fmt: str, size: int) -> Tensor:
    """Packed codes of rows of `size` -> codes [..., size]."""
    shape = (*packed.shape[:-1], size)
    return packing.unpack(packed, parse(fmt).element, shape).clone()


def _strided_like(x: Tensor, values: Tensor) -> Tensor:
    """`values` with the strides that torch.empty_like(x) has: what the graph was told."""
    expected = torch.empty_like(x)
    return values if values.stride() == expected.stride() else expected.copy_(values)


def _given_or_chosen(
    x: Tensor, scale: Tensor | None, zero_point: Tensor | None, outer: Tensor | None, fmt: Format
) -> QParams:
    if scale is None:
        return reference.choose_qparams(x, fmt)
    return QParams(scale, outer, zero_point)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    del output
    x, scale, zero_point, outer, ctx.fmt, _ = inputs
    ctx.save_for_backward(x, scale, zero_point, outer)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    if ctx.needs_input_grad[1] or ctx.needs_input_grad[3]:
        raise RuntimeError(
            "blockscale::fake_quantize has no gradient for a scale: detach it (a learned step "
            "needs a quantizer of its own)"
        )
    x, *qparams = ctx.saved_tensors
    return straight_through(gradient, x, *qparams, ctx.fmt), None, None, None, None, None


differentiable(fake_quantize, _save, _backward)


def _save_dequantize(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    del output
    packed, scale, zero_point, outer, *ctx.rest = inputs
    ctx.save_for_backward(packed, scale, zero_point, outer)


def _backward_dequantize(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """The gradient of the scales, by the reference: values are codes times scales."""
    packed, scale, zero_point, outer = ctx.saved_tensors
    wanted = {1: scale, 3: outer}
    leaves = {i: t.detach().requires_grad_() for i, t in wanted.items() if ctx.needs_input_grad[i]}
    with torch.enable_grad():
        values = dequantize.reference(
            packed, leaves.get(1, scale), zero_point, leaves.get(3, outer), *ctx.rest
        )
        found = torch.autograd.grad(values, list(leaves.values()), gradient)
    gradients: list[Tensor | None] = [None] * 7
    for i, each in zip(leaves, found, strict=True):
        gradients[i] = each
    return tuple(gradients)


differentiable(dequantize, _save_dequantize, _backward_dequantize)
for each in (choose_qparams, choose_quantize):
    not_differentiable(each, "use bs.fake_quantize, whose gradient is straight-through")
