# SPDX-License-Identifier: BSD-3-Clause
"""A convolution that stands alone, floats before and behind it, reads and writes channels first.

    permute(fused_conv(quantize(permute(x)), w, b))  ->  conv(x, w, b, input=...)

`fuse` writes convolutions channels last, so that codes pass between them as they are. Where none
do, the permutes are copies, which take longer than the convolution (1.6 to 3.4 times torch's
float32 one): the op of layers takes x where it lies, and quantizes it on the way.
"""

from operator import getitem
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from blockscale.core.operand import Quantizer, Value
from blockscale.graph.nodes import aten, call, calls, each_call, quantize_of, shape, value
from blockscale.graph.passes.fused import Call, only_user, read
from blockscale.ops.conv import conv
from blockscale.ops.fused import FUSED

_BEHIND: dict[str, tuple[Any, tuple[Any, ...]] | None] = {
    "": None,
    "relu": (aten.relu.default, ()),
    "relu6": (aten.hardtanh.default, (0.0, 6.0)),
}


class _Lone(NamedTuple):
    """x: floats, channels first; by: how they are quantized; last: the node that gives the result,
    channels first."""

    x: fx.Node
    by: Quantizer
    conv_call: Call
    last: fx.Node


def lower_lone_convolutions(graph: fx.GraphModule) -> None:
    """Write `conv` for each convolution that stands alone. Equal to the bit."""
    for node in each_call(graph, FUSED["conv"].op.overload):
        lone = _lone(node)
        if lone is not None:
            _write(graph, lone)
    graph.graph.eliminate_dead_code()


def around(node: fx.Node) -> str:
    """What is copied beside a convolution, channels last, where images lie channels first; "" if
    nothing is."""
    conv_call = read(node)
    if conv_call is None or conv_call.fused is not FUSED["conv"]:
        return ""
    sides = []
    if _before(conv_call.operands[0]) is not None:
        sides.append("before")
    if _behind(node) is not None and not conv_call.y.fmt:
        sides.append("behind")
    return f"channels are moved {' and '.join(sides)} it, a copy" if sides else ""


def _lone(node: fx.Node) -> _Lone | None:
    conv_call = read(node)
    if (
        conv_call is None
        or conv_call.y.fmt
        or conv_call.settings["transposed"]
        or conv_call.dtype != torch.float32
    ):
        return None
    before, last = _before(conv_call.operands[0]), _behind(node)
    if before is None or last is None or conv_call.settings["activation"] not in _BEHIND:
        return None
    return _Lone(*before, conv_call, last)


def _before(x: Value) -> tuple[fx.Node, Quantizer] | None:
    """The floats in order, channels first, that the codes of this operand are of; None if it has
    none, or others read the codes."""
    codes: Any = x.data
    node = codes.args[0] if calls(codes, getitem) else codes
    quantizes = quantize_of(node) if x.fmt else None
    if quantizes is None or any(len(each.users) > 1 for each in (codes, *node.users)):
        return None
    rank = len(shape(quantizes.x) or ())
    permute: Any = quantizes.x
    if not calls(permute, aten.permute) or [*permute.args[1]] != [0, *range(2, rank), 1]:
        return None
    floats = permute.args[0]
    there = value(floats)
    is_plain = isinstance(there, Tensor) and there.is_contiguous() and there.dtype == torch.float32
    return (floats, quantizes.by) if is_plain else None


def _behind(node: fx.Node) -> fx.Node | None:
    """What moves the channels of the result back, if nothing else reads it; or the copy of it."""
    (output,) = node.users if len(node.users) == 1 else (None,)
    permute: Any = None if output is None else only_user(output)
    rank = len(shape(permute) or ())
    if not calls(permute, aten.permute) or [*permute.args[1]] != [0, rank - 1, *range(1, rank - 1)]:
        return None
    copy = only_user(permute)
    return copy if copy is not None and _is_plain_copy(copy) else permute


def _is_plain_copy(node: fx.Node) -> bool:
    return calls(node, aten.contiguous) and len(node.args) == 1 and not node.kwargs


def _write(graph: fx.GraphModule, lone: _Lone) -> None:
    s, (weight,) = lone.conv_call.settings, lone.conv_call.operands[1:]
    args = (lone.x, weight.operand, s["bias"], s["shape"], s["stride"], s["padding"],
            s["dilation"], s["groups"], lone.by)  # fmt: skip
    y = call(graph, conv.overload, conv.flatten(*args), like=lone.last)
    behind = _BEHIND[s["activation"]]
    if behind is not None:
        y = call(graph, behind[0], (y, *behind[1]), like=lone.last)
    lone.last.replace_all_uses_with(y)
