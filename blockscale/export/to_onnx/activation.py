# SPDX-License-Identifier: BSD-3-Clause
"""Activations that are quantized and dequantized in a file.

QuantizeLinear and DequantizeLinear where ONNX has the type and says the blocks, so that runtimes
fuse them with the ops around; else standard operators that divide, round and multiply. Scales are
given (static) or chosen from every tensor.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from blockscale.core.block import WHOLE
from blockscale.core.element import Element
from blockscale.core.elements.integer import Integer
from blockscale.core.format import Format
from blockscale.core.reference import QParams, expand_offset, step_of
from blockscale.export.to_onnx import encode, steps
from blockscale.export.to_onnx import scope as split
from blockscale.export.to_onnx.scope import Scope, Sizes, native, put_tensor, put_zeros


class _BlockAxis(NamedTuple):
    """The blocks as QuantizeLinear's attributes: one of all (axis None), by axis, or along one."""

    axis: int | None = None
    block_size: int = 0

    @property
    def attributes(self) -> dict[str, Any]:
        """Its attributes."""
        result: dict[str, Any] = {} if self.axis is None else {"axis": self.axis}
        return result | ({"block_size": self.block_size} if self.block_size else {})


def refusal(fmt: Format, qparams: QParams | None, sizes: Sizes) -> str | None:
    """Why a file cannot quantize a tensor of these sizes, or None."""
    if reason := encode.refusal(fmt):
        return reason
    if qparams is None:
        if reason := encode.scales_refused(fmt) or split.refusal(fmt.block, sizes):
            return reason
        if not fmt.element.uses_range and _padded(fmt, sizes):
            return f"its scales are means, and blocks of {fmt.block} do not divide the size"
        return None
    if (
        qparams.scale.numel() != 1
        and fmt.block.sizes_for(len(sizes)).count(WHOLE) != len(sizes) - 1
    ):
        return f"static scales of blocks of {fmt.block} fit only one tensor: use 'tensor'"
    return None


def _padded(fmt: Format, sizes: Sizes) -> bool:
    blocks = fmt.block.sizes_for(len(sizes))
    return any(size > 1 and (n or 0) % size for n, size in zip(sizes, blocks, strict=True))


def activation(
    scope: Scope, name: str, x: str, fmt: Format, qparams: QParams | None, sizes: Sizes
) -> str:
    """x float32 of these sizes -> what is left of it after a round trip; None is a free size."""
    block_axis = _axis_of(fmt, sizes)
    simple = fmt.rounding == "nearest_even" and not fmt.recip and fmt.offset is None
    # onnxruntime 1.31 makes integer products of 8-bit floats in DequantizeLinear, and then fails
    as_one = native(fmt.element, scope.file.opset) is not None and simple and fmt.zero is None
    as_one = as_one and fmt.element.integer
    if qparams is not None:
        one = qparams.scale.numel() == 1
        # onnxruntime 1.31: 4 bits by axis wrap around far beyond their range
        fits = _container(fmt.element) is not None and simple and fmt.zero is None
        if (as_one and (one or (block_axis is not None and fmt.bits >= 8))) or (fits and one):
            return _static(scope, name, x, fmt, qparams, sizes)
        return _under_scale(scope, name, x, fmt, qparams, len(sizes))
    # onnxruntime 1.31 moves a Transpose over QuantizeLinear but not over the scales of blocks
    whole = block_axis is not None and not block_axis.block_size
    if as_one and block_axis is not None and whole and (not _narrow(fmt) or fmt.bits == 8):
        return _dynamic(scope, x, fmt, sizes, block_axis)
    blocks = split.split(scope, x, fmt.block, sizes)
    values = _round_trip(scope, blocks.x, fmt, encode.choose(scope, blocks, fmt))
    return blocks.join(scope, values)


def _round_trip(scope: Scope, x: str, fmt: Format, scale: encode.ChosenScale) -> str:
    by = ("Mul", scale.inverse) if scale.inverse else ("Div", scale.step)
    y = scope.op(by[0], x, by[1])
    return scope.op("Mul", encode.encoded(scope, y, fmt, scale.zero), scale.step)


def _narrow(fmt: Format) -> bool:
    """Whether the type of the codes has one that the format does not use: -128 of int8."""
    return fmt.element.integer and fmt.element.signed and not fmt.wide


def _axis_of(fmt: Format, sizes: Sizes) -> _BlockAxis | None:
    """The blocks of a tensor of these sizes as QuantizeLinear's attributes; None: it has none."""
    if fmt.block.flat:
        return None
    blocks = fmt.block.sizes_for(len(sizes))
    whole = [i for i, size in enumerate(blocks) if size == WHOLE or sizes[i] == 1]
    if len(whole) == len(blocks):
        return _BlockAxis()
    single = [i for i, size in enumerate(blocks) if size == 1]
    if len(single) == 1 and len(whole) >= len(blocks) - 1:
        return _BlockAxis(single[0])
    along = [i for i, size in enumerate(blocks) if size != 1]
    if len(along) != 1 or (n := sizes[along[0]]) is None:
        return None
    return _BlockAxis(along[0], blocks[along[0]] or n)


def _static(scope: Scope, name: str, x: str, fmt: Format, qparams: QParams, sizes: Sizes) -> str:
    """QuantizeLinear and DequantizeLinear under a given scale."""
    block_axis = None if qparams.scale.numel() == 1 else _axis_of(fmt, sizes)
    block_axis = block_axis or _BlockAxis()
    dims = () if block_axis.axis is None else (qparams.scale.numel(),)
    outer = None if qparams.outer is None else qparams.outer.reshape(dims and (1,))
    parts = qparams._replace(scale=qparams.scale.reshape(dims), outer=outer)
    step = steps.step(scope, name, fmt, parts)
    container = _container(fmt.element)
    element = container or fmt.element
    zero = put_zeros(scope.file, f"{name}.zero_point", element, qparams.zero_point, dims)
    if container is not None:
        x = _clipped(scope, name, x, fmt, qparams)
    elif _narrow(fmt) and fmt.bits != 8:  # no operator clips such codes in onnxruntime: clip x
        lowest = scope.op("Mul", step, scope.floats(fmt.element.limits(False)[0]))
        if block_axis.axis is not None:
            behind = len(sizes) - 1 - block_axis.axis % len(sizes)
            lowest = scope.op("Reshape", lowest, scope.ints(-1, *[1] * behind))
        x = scope.op("Max", x, lowest)
    return _linear(scope, x, step, zero, fmt, block_axis)


def _container(element: Element) -> Integer | None:
    """The integers of 8 bits that hold those of a width that ONNX has no type for: 7 bits, which
    torch.ao's reduce_range gives; None for others."""
    if type(element) is not Integer or element.bits not in (3, 5, 6, 7):
        return None
    return replace(element, bits=8)


def _clipped(scope: Scope, name: str, x: str, fmt: Format, qparams: QParams) -> str:
    """x up to the values of the smallest and largest code, which round to just these codes."""
    step = step_of(qparams, fmt).reshape(())
    zero = 0 if qparams.zero_point is None else int(qparams.zero_point)
    ends = [step * (code - zero) for code in fmt.element.limits(fmt.wide)]
    result = zip(("lowest", "largest"), ends, strict=True)
    return scope.op("Clip", x, *(put_tensor(scope.file, f"{name}.{k}", end) for k, end in result))


def _linear(scope: Scope, x: str, step: str, zero: str, fmt: Format, block_axis: _BlockAxis) -> str:
    codes = scope.op("QuantizeLinear", x, step, zero, **block_axis.attributes)
    if _narrow(fmt) and fmt.bits == 8:
        lowest = torch.tensor(-127, dtype=torch.int8)
        codes = scope.op("Clip", codes, scope.constant(lowest.numpy()))
    return scope.op("DequantizeLinear", codes, step, zero, **block_axis.attributes)


def _dynamic(scope: Scope, x: str, fmt: Format, sizes: Sizes, block_axis: _BlockAxis) -> str:
    """The scale from the tensor, then QuantizeLinear and DequantizeLinear."""
    kind = native(fmt.element, scope.file.opset)
    assert kind is not None
    choice = encode.choose(scope, split.split(scope, x, fmt.block, sizes), fmt)
    step = _arrange(scope, choice.step, block_axis)
    if not choice.zero:
        return _without_zero(scope, x, step, fmt, block_axis, kind)
    zero = scope.cast(_arrange(scope, choice.zero, block_axis), kind)
    return _linear(scope, x, step, zero, fmt, block_axis)


def _without_zero(
    scope: Scope, x: str, step: str, fmt: Format, block_axis: _BlockAxis, kind: str
) -> str:
    from onnx import TensorProto

    to = TensorProto.DataType.Value(kind)
    codes = scope.op("QuantizeLinear", x, step, output_dtype=to, **block_axis.attributes)
    if _narrow(fmt):
        lowest = torch.tensor(-127, dtype=torch.int8)
        codes = scope.op("Clip", codes, scope.constant(lowest.numpy()))
    return scope.op("DequantizeLinear", codes, step, **block_axis.attributes)


def _arrange(scope: Scope, parts: str, block_axis: _BlockAxis) -> str:
    """One number a block, as `split` has them, in the shape that QuantizeLinear wants."""
    if block_axis.axis is None:
        return scope.op("Reshape", parts, scope.ints())
    return scope.op("Reshape", parts, scope.ints(-1))


def _under_scale(scope: Scope, name: str, x: str, fmt: Format, qparams: QParams, rank: int) -> str:
    """x rounded under a given scale, where no type of ONNX has the codes."""
    shape = _full(qparams.scale, rank)
    step = put_tensor(scope.file, f"{name}.step", step_of(qparams, fmt).reshape(shape))
    zero, inverse, offset = "", "", ""
    if qparams.zero_point is not None:
        zeros = qparams.zero_point.to(torch.float32).reshape(shape)
        zero = put_tensor(scope.file, f"{name}.zero_point", zeros)
    if fmt.recip:
        inverses = _inverse(qparams, fmt).reshape(shape)
        inverse = put_tensor(scope.file, f"{name}.inverse", inverses)
    if fmt.offset is not None:
        offsets = expand_offset(qparams.offset, qparams.offset_outer, fmt, torch.Size(shape))
        assert offsets is not None
        offset = put_tensor(scope.file, f"{name}.offset", offsets.expand(shape))
        x = scope.op("Sub", x, offset)
    values = _round_trip(scope, x, fmt, encode.ChosenScale(step, inverse, zero))
    return scope.op("Add", values, offset) if offset else values


def _inverse(qparams: QParams, fmt: Format) -> Tensor:
    """What x is multiplied by under `recip`: the reference's, made of a one."""
    from blockscale.core.reference import in_steps

    return in_steps(torch.ones(tuple(qparams.scale.shape)), qparams._replace(offset=None), fmt)


def _full(scale: Tensor, rank: int) -> Sequence[int]:
    """The scale's shape with ones before its own."""
    if scale.numel() == 1:
        return (1,) * rank
    shape = (1,) * (rank - scale.ndim) + tuple(scale.shape)
    assert prod(shape) == scale.numel()
    return shape
