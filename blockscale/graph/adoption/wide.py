# SPDX-License-Identifier: BSD-3-Clause
"""Products of bfloat16 and float16 models in float32, as layers of ours compute them."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from blockscale.graph.nodes import aten, call, calls, dequantize_of, ours, replace
from blockscale.ops import primitives

LAYER = "blockscale_layer"  # in a node's meta: that it computes as a layer of ours does
_MOVING = (aten.view, aten.permute, aten.reshape, aten._unsafe_view, aten.t, aten.clone)


def widen(graph: fx.GraphModule) -> int:
    """Let marked nodes compute in float32, and round their results once. In place.

    torchao annotates edges, and leaves a layer's product in the model's own dtype; ours dequantize
    to float32 (docs/numerics.md, section 7). Returns the number of nodes.
    """
    count = 0
    for node in list(graph.graph.nodes):
        value = node.meta.get("val")
        if not node.meta.pop(LAYER, False) or value is None or value.dtype == torch.float32:
            continue
        args = fx.node.map_arg(node.args, partial(_float32, graph, like=node))
        y = call(graph, node.target, args, node.kwargs, like=node)
        replace(node, call(graph, aten.to.dtype, (y, value.dtype), like=node))
        count += 1
    return count


def _float32(graph: fx.GraphModule, node: fx.Node, like: fx.Node) -> fx.Node:
    """The same values before they were rounded to a narrower float, else widened."""
    value: Any = node.meta.get("val")
    narrow = isinstance(value, Tensor) and value.is_floating_point()
    if not narrow or value.dtype == torch.float32:
        return node
    found = dequantize_of(node)
    if found is not None:
        args = primitives.dequantize.flatten(found.coded, torch.float32)
        return call(graph, ours.dequantize.default, args, like=like)
    if calls(node, *_MOVING):
        first, *rest = node.args
        assert isinstance(first, fx.Node)
        wide = _float32(graph, first, like)
        return call(graph, node.target, (wide, *rest), node.kwargs, like=like)  # type: ignore[arg-type]
    source: Any = node.args[0] if calls(node, aten._to_copy) else None
    if source is not None and source.meta["val"].dtype == torch.float32:
        return source
    return call(graph, aten.to.dtype, (node, torch.float32), like=like)
