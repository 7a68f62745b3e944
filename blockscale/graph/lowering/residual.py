# SPDX-License-Identifier: BSD-3-Clause
"""Lowering of what several nodes make together: residual sums before norms, and attention."""

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from blockscale.core.operand import Quantizer, Value
from blockscale.graph.lowering.kernels import has_kernel
from blockscale.graph.nodes import call, calls, quantize_of, same_sizes, shape
from blockscale.graph.passes.fused import Call, dtype_of, match_fused, only_user, read, result
from blockscale.ops.fused.plan import RESIDUAL_LAYER_NORM, RESIDUAL_RMS_NORM

# Attention of floats by our own kernel, which is faster than torch's.


def lower_attention(graph: fx.GraphModule, backend: str) -> int:
    """Write `fused_sdpa` in the place of each attention that a kernel of the backend runs.

    In place; sums are in another order, within the op's ulps. Returns how many there are.
    """
    count = 0
    for node in list(graph.graph.nodes):
        attention = None if node._erased else match_fused(node)
        if attention is None or attention.fused.name != "sdpa":
            continue
        dtype = dtype_of(node)
        assert dtype is not None
        operands = [Value(each) for each in attention.operands]  # type: ignore[arg-type]
        fused_node = Call(attention.fused, operands, attention.settings, dtype).write(graph, node)
        if has_kernel(fused_node, backend):
            node.replace_all_uses_with(result(graph, fused_node, node))
            graph.graph.erase_node(node)
            count += 1
        else:
            graph.graph.erase_node(fused_node)
    return count


_OPS = {"layer_norm": RESIDUAL_LAYER_NORM, "rms_norm": RESIDUAL_RMS_NORM}


@dataclass(frozen=True)
class _End:
    """The end of a residual branch: a sum of two nodes, its norm, and what gives the codes.

    floats: the node whose floats are kept, the sum or the norm
    codes: the quantize, or the fused norm itself
    """

    sides: tuple[fx.Node, fx.Node]
    norm: str
    settings: dict[str, Any]
    by: Quantizer
    floats: fx.Node
    codes: fx.Node
    keep: str


def lower_residual_norms(graph: fx.GraphModule, backend: str) -> int:
    """Write residual norms where a kernel of the backend runs them.

    In place; sums are in another order, within the ops' ulps. Returns how many there are.
    """
    count = 0
    for node in list(graph.graph.nodes):
        if node._erased:
            continue
        end = _behind(node) or _before(node)
        count += end is not None and _write(graph, end, backend)
    return count


def _behind(node: fx.Node) -> _End | None:
    """A norm behind a sum that no other node reads, which is quantized and read as floats too."""
    norm = match_fused(node)
    if norm is None or norm.fused.name not in _OPS or len(node.users) < 2:
        return None
    total = norm.operands[0]
    sides = _sides(total)
    quantizers = [user for user in node.users if (q := quantize_of(user)) and q.x is node]
    if sides is None or only_user(total) is not node or not quantizers:
        return None
    quantize = quantize_of(quantizers[0])
    assert quantize is not None
    if not quantize.by.fmt:
        return None
    return _End(sides, norm.fused.name, norm.settings, quantize.by, node, quantizers[0], "norm")


def _before(node: fx.Node) -> _End | None:
    """A sum that is read by a norm that gives codes, and by others."""
    norm = read(node)
    if norm is None or norm.fused.name not in _OPS or not norm.y.fmt or norm.operands[0].fmt:
        return None
    total: Any = norm.operands[0].data
    sides = _sides(total)
    only_items = all(calls(user, operator.getitem) for user in node.users)
    if sides is None or len(total.users) < 2 or not only_items:
        return None
    return _End(sides, norm.fused.name, norm.settings, norm.y, total, node, "sum")


def _sides(total: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """The two float32 tensors of one shape whose sum a node is; None if it is none."""
    addition = match_fused(total)
    if addition is None or addition.fused.name != "add" or addition.settings["alpha"] != 1:
        return None
    a, b = addition.operands
    alike = same_sizes(shape(a), shape(b)) and dtype_of(total) == torch.float32
    return (a, b) if alike else None


def _write(graph: fx.GraphModule, end: _End, backend: str) -> bool:
    """Write the op before all that read what it gives; whether a kernel runs it."""
    first = min([end.codes, *end.floats.users]) if end.keep == "sum" else end.floats
    op = _OPS[end.norm]
    a, b = (Value(each) for each in end.sides)  # type: ignore[arg-type]
    args = op.flatten(a, b, *end.settings.values(), end.keep, torch.float32, end.by)
    for each in args:
        if isinstance(each, fx.Node) and not _hoist(each, first):
            return False
    while args[-1] is None:
        args = args[:-1]
    fused_node = call(graph, op.overload, args, like=first)
    if not has_kernel(fused_node, backend):
        graph.graph.erase_node(fused_node)
        return False
    _take_out(graph, end, fused_node, first)
    return True


def _hoist(node: fx.Node, first: fx.Node) -> bool:
    """Move a node before `first`, where it is not yet; whether that can be."""
    if node < first:
        return True
    if node is first or not all(_hoist(each, first) for each in node.all_input_nodes):
        return False
    first.prepend(node)
    return True


def _take_out(graph: fx.GraphModule, end: _End, fused_node: fx.Node, first: fx.Node) -> None:
    """Let all readers take what it gives: the floats, the codes, and parts beside them."""
    floats = call(graph, operator.getitem, (fused_node, 0), like=first)
    as_list = end.keep == "sum" or end.by.scale is None
    if as_list:  # [codes, *parts]
        for user in list(end.codes.users):
            place: Any = user.args[1]
            part = call(graph, operator.getitem, (fused_node, place + 1), like=first)
            user.replace_all_uses_with(part)
            graph.graph.erase_node(user)
    else:
        codes = call(graph, operator.getitem, (fused_node, 1), like=first)
        end.codes.replace_all_uses_with(codes)
    graph.graph.erase_node(end.codes)
    end.floats.replace_all_uses_with(floats)
    graph.graph.erase_node(end.floats)
