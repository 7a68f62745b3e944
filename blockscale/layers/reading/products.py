# SPDX-License-Identifier: BSD-3-Clause
"""What torch's operators do with a ReadTensor: products by our kernels, or its floats.

Each handler gets the operator's arguments and returns its result, or None where only the floats
will do.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from blockscale.core.operand import Operand
from blockscale.core.pack import grouped_layout
from blockscale.core.scales import CodeScale, TwoLevel
from blockscale.core.torch_private import DispatchKey, has_kernel
from blockscale.layers.reading.pieces import STACKS, VIEWS, chosen_of
from blockscale.layers.reading.source import ReadTensor, dense, written
from blockscale.ops.conv import conv
from blockscale.ops.conv_transpose import conv_transpose
from blockscale.ops.embedding import embedding
from blockscale.ops.pieces import product

# The one write that codes allow: all of a weight times a power of two, where that is exact.
#
# RWKV's models do that (`weight.div_(4)`) to some of their layers when they are put into
# evaluation.


def multiplied(weight: Any, factor: Any, *, inverse: bool = False) -> Any:
    """The weight after `mul_(factor)`, or `div_` with `inverse`: its scales have changed in place.

    None, and nothing done, unless that is exact: the factor is a power of two, and each dequantized
    value of the whole weight is what it was times that.
    """
    power = _power(factor)
    if power is None or not isinstance(weight, ReadTensor) or weight.source.owner is None:
        return None
    power = -power if inverse else power
    owner = weight.source.owner
    if not hasattr(owner, "qparams"):
        return None
    new = _scaled(owner, power)
    before = {name: part.clone() for name, part in owner.own.items() if part is not None}
    expected = owner.tensor.dequantize() * 2.0**power
    for name, part in new.items():
        _write(getattr(owner, name), part)
    if not torch.equal(owner.tensor.dequantize(), expected):
        for name, part in before.items():
            _write(getattr(owner, name), part)
        return None
    weight.source.value = None
    return weight


def _write(buffer: Tensor, value: Tensor) -> None:
    """Below autograd a write leaves no trace, and what kernels keep beside weights needs one."""
    buffer.copy_(value)
    if not buffer.is_inference():
        torch.autograd.graph.increment_version(buffer)


def _power(factor: Any) -> int | None:
    """The exponent of a positive power of two, else None."""
    if isinstance(factor, Tensor):
        if isinstance(factor, ReadTensor) or factor.numel() != 1:
            return None
        factor = factor.item()
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not factor > 0:
        return None
    fraction, exponent = math.frexp(factor)
    return exponent - 1 if fraction == 0.5 else None


def _scaled(owner: Any, power: int) -> dict[str, Tensor]:
    """{part: what it becomes} of the parts that say how large the values are."""
    parts = {name: part for name, part in owner.qparams._asdict().items() if part is not None}
    two_level = isinstance(owner.format.scale, TwoLevel)
    new: dict[str, Tensor] = {}
    for name in ("offset_outer", "scale_offset", *(["outer"] if two_level else ["scale"])):
        part = parts.get(name)
        if part is None:
            continue
        if isinstance(owner.format.scale, CodeScale) and name == "scale":
            own = owner.format.scale
            new[name] = own.store(own.step(part) * 2.0**power)
        elif part.dtype == torch.uint8:  # an e8m0's byte is its exponent
            new[name] = (part.to(torch.int32) + power).clamp(0, 254).to(torch.uint8)
        else:
            sign = -1 if name == "outer" and owner.format.scale.reciprocal else 1
            new[name] = part * 2.0 ** (sign * power)
    if "offset" in parts and parts["offset"].is_floating_point():
        new["offset"] = parts["offset"] * 2.0**power
    return new


aten = torch.ops.aten


def run(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """One call of torch's with ReadTensors among its arguments.

    Raises RuntimeError, with the weight's name, for a call that writes to one.
    """
    handler = _HANDLERS.get(func) or VIEWS.get(func) or STACKS.get(func.name())
    if handler is not None:
        result = handler(*args, **kwargs)
        if result is not None:
            return result
    _refuse_writes(func, args, kwargs)
    if func._schema.is_mutable is False and func._can_decompose() and _implicit(func):
        return func.decompose(*args, **kwargs)
    result = func(*dense(args), **dense(kwargs))
    return _as_views(func, args, result)


def _implicit(func: Any) -> bool:
    key = DispatchKey.CompositeImplicitAutograd
    return bool(has_kernel(func.name(), key))


def _refuse_writes(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    if not func._schema.is_mutable:
        return
    given = dict(zip((each.name for each in func._schema.arguments), args, strict=False)) | kwargs
    for argument in func._schema.arguments:
        value = given.get(argument.name)
        if argument.is_write and isinstance(value, ReadTensor):
            raise written(f"{func._schema.name.removeprefix('aten::')}", value.source)


def _as_views(func: Any, args: Sequence[Any], result: Any) -> Any:
    """A view of a weight is not written to either."""
    first = args[0] if args else None
    if not isinstance(first, ReadTensor) or not func.is_view:
        return result

    def view(part: Tensor) -> Tensor:
        return first.view_of(part.shape, None, lambda: part, transposed=False, value=part)

    return [view(part) for part in result] if isinstance(result, list | tuple) else view(result)


def _factor(weight: Any, x: Any) -> Operand | None:
    """The codes [n, k] of a weight [k, n], for an x of its dtype; else None."""
    if not isinstance(weight, ReadTensor) or isinstance(x, ReadTensor):
        return None
    source = weight.source
    usable = source.transposed and weight.ndim == 2
    return (
        source.operand if usable and x.dtype == source.dtype and x.device == source.device else None
    )


def _mm(x: Any, weight: Any) -> Any:
    factor = _factor(weight, x)
    return None if factor is None else product(x, factor)


def _addmm(bias: Any, x: Any, weight: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    factor = _factor(weight, x)
    if factor is None or beta != 1 or alpha != 1 or bias.ndim != 1:
        return None
    return product(x, factor, dense(bias).expand(weight.shape[1]))


def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    if not isinstance(weight, ReadTensor) or weight.ndim != 2:
        return None
    factor = _factor(weight.t(), x)
    return None if factor is None else product(x, factor, dense(bias))


def _convolution(
    x: Any, weight: Any, bias: Any, stride: list[int], padding: list[int], dilation: list[int],
    transposed: bool, output_padding: list[int], groups: int,
) -> Any:  # fmt: skip
    if not isinstance(weight, ReadTensor):
        return None
    source = weight.source
    if source.operand is None or source.layout == "plain" or x.dtype != source.dtype:
        return None
    bias, shape, settings = dense(bias), list(weight.shape), (list(stride), list(padding))
    if not transposed and source.layout == "channels_last":
        return conv(x, source.operand, bias, shape, *settings, list(dilation), groups)
    if transposed and source.layout == grouped_layout(groups):
        more = (list(output_padding), list(dilation), groups)
        return conv_transpose(x, source.operand, bias, shape, *settings, *more)
    return None


def _embedding(
    weight: Any, indices: Any, padding_idx: int = -1, scale: bool = False, sparse: bool = False
) -> Any:
    del padding_idx, scale, sparse  # of gradients of the table, which has none
    return _rows_of(weight, indices)


def _index_select(weight: Any, dim: int, indices: Any) -> Any:
    if dim % weight.ndim:
        return None
    return _rows_of(weight, indices) if weight.ndim == 2 else chosen_of(weight, indices)


def _index(weight: Any, indices: Sequence[Any]) -> Any:
    alone = len(indices) == 1 and indices[0] is not None and indices[0].dtype == torch.int64
    if not alone or not isinstance(weight, ReadTensor):
        return None
    chosen = indices[0]  # negative ones count from the end
    chosen = torch.where(chosen < 0, chosen + weight.shape[0], chosen)
    return _rows_of(weight, chosen) if weight.ndim == 2 else chosen_of(weight, chosen)


def _rows_of(weight: Any, indices: Tensor) -> Any:
    if not isinstance(weight, ReadTensor) or weight.ndim != 2:
        return None
    source = weight.source
    if source.operand is None or source.transposed or source.layout != "plain":
        return None
    return embedding(source.operand, indices, source.dtype)


_HANDLERS: dict[Any, Callable[..., Any]] = {
    aten.div_.Scalar: partial(multiplied, inverse=True),
    aten.div_.Tensor: partial(multiplied, inverse=True),
    aten.mul_.Scalar: multiplied,
    aten.mul_.Tensor: multiplied,
    aten.mm.default: _mm,
    aten.matmul.default: _mm,
    aten.addmm.default: _addmm,
    aten.linear.default: _linear,
    aten.convolution.default: _convolution,
    aten.embedding.default: _embedding,
    aten.index_select.default: _index_select,
    aten.index.Tensor: _index,
}
