# SPDX-License-Identifier: BSD-3-Clause
"""Ops that keep the order of numbers work on codes, as what stands before them then gives codes.

    q(max_pool(relu(x)))     ->  q(max_pool(dq(q(relu(x)))))
    q(relu(a + b))           ->  q(relu(dq(q(a + b)))), or q(a + b) where relu changes no code
    q(cat([relu(x), b]))     ->  cat([q(relu(x)), q(b)])

Rounding keeps the order of numbers, and what was rounded stays as it is: the largest code is that
of the largest number, and the code of a bound bounds the codes. (A NaN, which a pool passes on, has
no code of its own; a clamp is left where its code would change.)
"""

from typing import Any

import torch
from torch import Tensor, fx

from blockscale.core import reference
from blockscale.core.operand import Operand, Quantizer
from blockscale.core.parse import parse
from blockscale.graph.constants import get
from blockscale.graph.nodes import call, dequantize_of, each_call, ours, quantize_of, replace, shape
from blockscale.graph.passes.absorb import ends_in_op
from blockscale.graph.passes.cancel import one_row, stable
from blockscale.graph.passes.fuse_activation import activation_of
from blockscale.graph.passes.fused import dtype_of, match_fused, only_user, taken_out
from blockscale.graph.passes.moved_cuts import join_codes
from blockscale.ops import primitives
from blockscale.ops.fused import Match

_POOLS = ("max_pool1d", "max_pool2d", "max_pool3d")
_CLAMPS = ("relu", "relu6", "hardtanh", "clamp")


def run(graph: fx.GraphModule) -> int:
    """Quantize before each op whose result is quantized under one scale. Equal to the bit for
    numbers."""
    count, results = 0, list(each_call(graph, ours.quantize))
    while results:
        node = results.pop()
        result = quantize_of(node)
        if result is not None and isinstance(result.x, fx.Node):
            earlier = _before(graph, node, result.x, result.by)
            count += bool(earlier)
            results += earlier
    return count


def _before(graph: fx.GraphModule, node: fx.Node, x: fx.Node, by: Quantizer) -> list[fx.Node]:
    """Quantize what goes into the op that gives x, if an op makes it that can give codes: the nodes
    that quantize now, none where nothing was changed."""
    result, dtype = match_fused(x), dtype_of(x)
    if result is None or dtype is None or only_user(x) is not node or not _plain(graph, by, dtype):
        return []
    if result.fused.name == "cat":
        return _into_parts(graph, node, x, result)
    source = result.operands[0]
    if result.fused.name not in (*_POOLS, *_CLAMPS) or not ends_in_op(source):
        return []
    if dtype_of(source) != dtype or not shape(source):
        return []
    if result.fused.name in _POOLS:
        return _through(graph, node, x, source)
    if _is_taken(x, source):
        return []
    code = _Clamp(graph, by, result, dtype)
    if code.changes_none:
        node.replace_input_with(x, source)
        graph.graph.erase_node(x)
        return [node]
    return _through(graph, node, x, source) if code.keeps_nan else []


def _plain(graph: fx.GraphModule, by: Quantizer, dtype: torch.dtype) -> bool:
    """Whether it rounds by one known scale, under which a code that was rounded stays."""
    fmt = parse(by.fmt)
    plain = fmt.block.name == "tensor" and fmt.element.integer and by.outer is None
    if not plain or by.more:
        return False
    operand = Operand(None, by.scale, by.zero_point, None, by.fmt, 1)  # type: ignore[arg-type]
    return stable(graph, operand, dtype) and bool((get(graph, by.scale) > 0).all())  # type: ignore[arg-type]


def _is_taken(x: fx.Node, source: fx.Node) -> bool:
    """Whether x becomes the activation of the product that gives `source`."""
    product = taken_out(source) or match_fused(source)
    ends = product is not None and product.settings.get("activation") == ""
    return ends and bool(activation_of(x, source))


def _through(graph: fx.GraphModule, node: fx.Node, x: fx.Node, source: fx.Node) -> list[fx.Node]:
    """Let x be computed of `source` quantized as the node quantizes, and dequantized."""
    sizes = shape(source) or ()
    if not sizes or not isinstance(sizes[-1], int):
        return []
    codes: Any = _quantized(graph, node, source, x)
    result = quantize_of(node)
    assert result is not None
    by = result.by
    operand = Operand(codes, by.scale, by.zero_point, None, by.fmt, sizes[-1])  # type: ignore[arg-type]
    args: Any = primitives.dequantize.flatten(operand, dtype_of(source))
    x.replace_input_with(source, call(graph, ours.dequantize.default, args, like=x))
    return [codes]


def _quantized(graph: fx.GraphModule, node: fx.Node, source: fx.Node, like: fx.Node) -> fx.Node:
    """`source` quantized as the node quantizes, before `like`."""
    return call(graph, ours.quantize.default, (source, *node.args[1:]), like=like)


def _into_parts(graph: fx.GraphModule, node: fx.Node, x: fx.Node, match: Match) -> list[fx.Node]:
    """Join codes, where an op that can give them makes one of the parts at least."""
    parts, quantized = match.operands, quantize_of(node)
    assert quantized is not None
    by = quantized.by
    if not any(dequantize_of(each) is None and ends_in_op(each) for each in parts):
        return []
    operand: list[Operand] = []
    for each in parts:
        sizes = shape(each) or ()
        if not sizes or not isinstance(sizes[-1], int):
            return []
        codes: Any = _quantized(graph, node, each, x)
        beside: Any = (by.scale, by.zero_point, None, by.fmt, sizes[-1])
        operand.append(Operand(codes, *beside))
    result = join_codes(graph, x, operand)
    if result is None:
        return []
    replace(node, result.codes)  # type: ignore[arg-type]
    return [each.codes for each in operand]  # type: ignore[misc]


class _Clamp:
    """What a clamp makes of each code: found by trying all.

    changes_none: whether each code that quantizing gives stays as it is, that of NaN too
    keeps_nan: whether that of NaN does
    """

    def __init__(self, graph: fx.GraphModule, by: Quantizer, clamp: Match, dtype: torch.dtype):
        scale, zero = (None if p is None else get(graph, p) for p in (by.scale, by.zero_point))  # type: ignore[arg-type]
        assert scale is not None
        rows, fmt = one_row(scale, zero, parse(by.fmt))
        low, high = (int(each) for each in fmt.element.limits(fmt.wide))
        codes = torch.arange(low, high + 1).to(fmt.element.code_dtype)[None]
        nan = reference.quantize(torch.full((1, 1), torch.nan, dtype=dtype), rows, fmt)

        def after(each: Tensor) -> Tensor:
            values = reference.dequantize(each, rows, fmt, dtype)
            return reference.quantize(clamp.fused.body(values, **clamp.settings), rows, fmt)

        self.keeps_nan = torch.equal(after(nan), nan)
        self.changes_none = self.keeps_nan and torch.equal(after(codes), codes)
