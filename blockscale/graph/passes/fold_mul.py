# SPDX-License-Identifier: BSD-3-Clause
"""A product times a constant takes the constant into its weight's scale and its bias.

    linear(x, dq(w, scale), b) * c  ->  linear(x, dq(w, scale * c), b * c)

The scale is of full rank and c belongs to the outputs, dimension 0 of a weight as it is stored:
c [n] is [n, 1] there, beside scales [n, 1] or [n, groups]. (As [n] it would broadcast along the
groups or, at n groups, along both.) Results differ by rounding: 1e-6 relative to the largest.
Scales that are powers of two take powers of two only, exactly.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from blockscale.core.format import Format
from blockscale.core.operand import Operand
from blockscale.core.parse import parse
from blockscale.core.scale import FloatScale, PowerOfTwo
from blockscale.graph.constants import get, is_constant, put_constant
from blockscale.graph.nodes import (
    Dequantize,
    arguments,
    aten,
    call,
    calls,
    dequantize_of,
    each_call,
    ours,
    shape,
)
from blockscale.graph.passes.fused import dtype_of, only_user
from blockscale.ops import primitives

_CONVS = (aten.conv1d, aten.conv2d, aten.conv3d)
_LAYOUT = (aten.view, aten.reshape, aten.permute, aten.contiguous)


@dataclass
class _Product:
    """node: a linear or convolution; weight: its codes; chain: from the float weight to those."""

    node: fx.Node
    weight: Dequantize
    chain: list[fx.Node]
    bias: fx.Node | None
    rank: int
    channel: int  # dimension of the outputs in the result


def run(graph: fx.GraphModule) -> int:
    """Fold each constant factor of a product with a coded weight."""
    count = 0
    for node in each_call(graph, aten.mul):
        pair = arguments(node)
        for x, c in ((pair["self"], pair["other"]), (pair["other"], pair["self"])):
            product = _product(x, node)
            factor = _factor(graph, c, product) if product is not None else None
            if product is None or factor is None or dtype_of(node) != torch.float32:
                continue
            if _fold(graph, node, x, product, factor):
                count += 1
                break
    return count


def _product(x: Any, reader: fx.Node) -> _Product | None:
    """The product of a coded weight that `reader` alone reads."""
    if not isinstance(x, fx.Node) or only_user(x) is not reader:
        return None
    if calls(x, aten.contiguous):
        return _product(x.args[0], x)
    if not calls(x, aten.linear, *_CONVS) or shape(x) is None:
        return None
    inputs, chain = arguments(x), []
    weight = inputs["weight"]
    while calls(weight, *_LAYOUT):
        chain.append(weight)
        weight = weight.args[0]
    result, rank = dequantize_of(weight), len(shape(x) or ())
    if result is None or len(shape(weight) or ()) != 2 or result.dtype != torch.float32:
        return None
    if chain and (shape(chain[0]) or (None,))[0] != (shape(weight) or (0,))[0]:
        return None  # the outputs are not its first dimension
    linear = calls(x, aten.linear)
    channel = rank - 1 if linear else rank - len(shape(inputs["weight"]) or ()) + 1
    return _Product(x, result, chain, inputs["bias"], rank, channel)


def _factor(graph: fx.GraphModule, c: Any, product: _Product) -> Tensor | None:
    """The factors as float32 [n, 1] or [1, 1]; None if they are no factors of outputs."""
    if isinstance(c, int | float) and not isinstance(c, bool):
        return torch.tensor([[float(c)]])
    if not is_constant(c):
        return None
    value = get(graph, c)
    if not value.is_floating_point() or value.ndim > product.rank or value.dtype != torch.float32:
        return None
    if value.numel() == 1:
        return value.detach().reshape(1, 1)
    full = [1] * (product.rank - value.ndim) + list(value.shape)
    outputs = (shape(product.weight.operand.codes) or (0,))[0]
    others = [n for dim, n in enumerate(full) if dim != product.channel]
    if full[product.channel] != outputs or any(n != 1 for n in others):
        return None
    return value.detach().reshape(-1, 1)


@torch.no_grad()
def scaled(scale: Tensor, factor: Tensor, fmt: Format) -> Tensor | None:
    """A weight's scale [n or 1, groups] times a factor [n, 1] or [1, 1], float32, as it is stored;
    None where the format cannot store it, or not to float32's rounding."""
    if not bool(factor.isfinite().all()) or bool((factor == 0).any()):
        return None
    if bool((factor < 0).any()) and fmt.span != "signed":
        return None
    if factor.shape[0] > 1 and fmt.block.sizes_for(2)[0] != 1:
        return None  # one scale is of several outputs
    mantissa, exponent = torch.frexp(factor.abs())
    exact = bool((mantissa == 0.5).all())
    if isinstance(fmt.scale, PowerOfTwo):
        return _move_exponent(scale, exponent - 1) if exact and not fmt.offset else None
    if not isinstance(fmt.scale, FloatScale) or fmt.offset is not None:
        return None
    if fmt.scale.dtype != torch.float32 and not exact:
        return None
    result = (scale.to(torch.float32) * factor).to(fmt.scale.dtype)
    size = result.abs().to(torch.float32)
    tiny = torch.finfo(fmt.scale.dtype).tiny
    fits = (size >= max(tiny, fmt.scale.low)) & (size <= fmt.scale.high)
    return result if bool((fits | (scale == 0)).all()) else None


def _move_exponent(scale: Tensor, exponent: Tensor) -> Tensor | None:
    """A power of two as it is stored, times 2^exponent, if that is one that can be stored."""
    if scale.dtype == torch.uint8:
        result = scale.to(torch.int32) + exponent.to(torch.int32)
        return result.to(torch.uint8) if bool(((result > 0) & (result < 255)).all()) else None
    result = torch.ldexp(scale, exponent)
    same = torch.ldexp(result, -exponent)
    limits = (result.abs() >= torch.finfo(scale.dtype).tiny) & result.isfinite()
    return result if torch.equal(same, scale) and bool(limits.all()) else None


@torch.no_grad()
def _fold(
    graph: fx.GraphModule, node: fx.Node, x: fx.Node, product: _Product, factor: Tensor
) -> bool:
    operand, bias = product.weight.operand, product.bias
    fmt, part = parse(operand.fmt), "outer" if operand.outer is not None else "scale"
    old: Any = getattr(operand, part)
    if not is_constant(old) or (bias is not None and not is_constant(bias)) or operand.more:
        return False
    if part == "outer":
        result = _outer(get(graph, old), factor)
    else:
        result = scaled(get(graph, old), factor, fmt)
    if result is None:
        return False
    new: Any = put_constant(graph, str(old.target), result, like=product.node)
    changes = {part: new}
    dense = _dense(graph, product, operand._replace(**changes))
    product.node.update_arg(1, dense)
    if bias is not None:
        times = get(graph, bias) * factor.reshape(-1).to(get(graph, bias).dtype)
        product.node.update_arg(2, put_constant(graph, str(bias.target), times, like=product.node))
    node.replace_all_uses_with(x)
    graph.graph.erase_node(node)
    return True


def _outer(outer: Tensor, factor: Tensor) -> Tensor | None:
    """The one scale of a weight's scales, times one factor."""
    if factor.numel() != 1 or outer.dtype != torch.float32 or not bool((factor > 0).all()):
        return None
    result = outer * factor.reshape(())
    return (
        result
        if bool(result.isfinite().all() and (result >= torch.finfo(result.dtype).tiny).all())
        else None
    )


def _dense(graph: fx.GraphModule, product: _Product, operand: Operand) -> fx.Node:
    """The float weight of other scales, laid out as it was."""
    args = primitives.dequantize.flatten(operand, product.weight.dtype)
    result = call(graph, ours.dequantize.default, args, like=product.node)
    for each in reversed(product.chain):
        result = call(graph, each.target, (result, *each.args[1:]), each.kwargs, like=product.node)  # type: ignore[arg-type]
    return result
