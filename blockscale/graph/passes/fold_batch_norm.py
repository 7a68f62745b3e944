# SPDX-License-Identifier: BSD-3-Clause
"""A batch norm in evaluation becomes part of the convolution or linear before it.

    bn(conv(x, W, b))  ->  conv(x, W * g, beta + (b - mean) * g)      g = gamma / sqrt(var + eps)

Results differ by rounding only: 1e-6 relative to the largest. The sums are those that
blockscale.qat trains with, in float32 and in their order, so that both give one weight.
"""

import operator
from typing import Any

import torch
from torch import Tensor, fx

from blockscale.graph.constants import get, is_constant, put_constant
from blockscale.graph.nodes import arguments, aten, calls, each_call, say, shape

_CONVS = (aten.conv1d, aten.conv2d, aten.conv3d)
_TRANSPOSED = (aten.conv_transpose1d, aten.conv_transpose2d, aten.conv_transpose3d)
_NORMS = (aten.batch_norm, aten._native_batch_norm_legit_no_training)
_PARTS = ("weight", "bias", "running_mean", "running_var")


def run(graph: fx.GraphModule) -> int:
    """Fold each batch norm whose input nobody else reads.

    New constants take the names of the old, `<layer>.weight` and `<layer>.bias`; the tensors
    themselves, which other models may share, are not written. Why one stays is in the ledger.
    """
    count = 0
    for norm in each_call(graph, *_NORMS):
        inputs = arguments(norm)
        if (reason := _why_not(graph, norm, inputs)) is not None:
            say(graph, norm, f"stays a batch norm: {reason}")
            continue
        layer = inputs["input"]
        _fold(graph, layer, [_tensor(graph, inputs[name]) for name in _PARTS], inputs["eps"])
        for last in _results(norm):
            last.replace_all_uses_with(layer)
            graph.graph.erase_node(last)
        if not norm._erased:
            graph.graph.erase_node(norm)
        count += 1
    return count


def _results(norm: fx.Node) -> list[fx.Node]:
    """The nodes that hold the normalized tensor."""
    return [norm] if calls(norm, aten.batch_norm) else list(norm.users)


def _why_not(graph: fx.GraphModule, norm: fx.Node, inputs: dict[str, Any]) -> str | None:
    layer = inputs["input"]
    if inputs.get("training"):
        return "it uses the statistics of the batch, as in training"
    if not calls(layer, aten.linear, aten.convolution, *_CONVS, *_TRANSPOSED):
        return "no convolution or linear comes before it"
    if len(layer.users) > 1:
        return "other nodes read its input too"
    if calls(layer, aten.linear) and len(shape(layer) or ()) != 2:
        return "its channels are not the features of the linear before it"
    if calls(norm, *_NORMS[1:]) and any(
        not calls(user, operator.getitem) or user.args[1] != 0 for user in norm.users
    ):
        return "its statistics are used elsewhere"
    if inputs["running_mean"] is None or inputs["running_var"] is None:
        return "it keeps no running statistics"
    own = arguments(layer)
    results = [own["weight"], own["bias"], *(inputs[name] for name in _PARTS)]
    if not is_constant(own["weight"]) or any(n is not None and not is_constant(n) for n in results):
        return "weight, bias or statistics are not constants of the graph"
    if _readers(graph, own["weight"]) > 1:
        return "another node reads the weight too"
    return None


def _readers(graph: fx.GraphModule, weight: fx.Node) -> int:
    """How many nodes read the tensor, under whatever names the graph has for it."""
    tensor = get(graph, weight)
    results = [n for n in graph.graph.nodes if is_constant(n) and _is(graph, n, tensor)]
    return sum(len(each.users) for each in results)


def _is(graph: fx.GraphModule, node: fx.Node, tensor: Tensor) -> bool:
    try:
        return get(graph, node) is tensor
    except ValueError:  # a constant that is no tensor
        return False


def _tensor(graph: fx.GraphModule, node: fx.Node | None) -> Tensor | None:
    return None if node is None else get(graph, node)


def _transposed(layer: fx.Node) -> bool:
    return calls(layer, *_TRANSPOSED) or bool(arguments(layer).get("transposed"))


@torch.no_grad()
def _fold(
    graph: fx.GraphModule, layer: fx.Node, statistics: list[Tensor | None], eps: float
) -> None:
    """Give the layer the weight and bias that the batch norm makes of its own."""
    own = arguments(layer)
    weight, bias = get(graph, own["weight"]), _tensor(graph, own["bias"])
    gamma, beta, mean, variance = statistics
    assert mean is not None and variance is not None
    factor = torch.rsqrt(variance.to(torch.float32) + eps)
    factor = factor if gamma is None else gamma.to(torch.float32) * factor
    shift = -mean.to(torch.float32)
    shift = (shift if bias is None else bias.to(torch.float32) + shift) * factor
    shift = shift if beta is None else beta.to(torch.float32) + shift
    groups = own["groups"] if _transposed(layer) else 0
    folded = weight.to(torch.float32) * _by_output(factor, weight.shape, groups)
    _give(graph, layer, own, (folded.to(weight.dtype), shift.to(weight.dtype)))


def _give(
    graph: fx.GraphModule, layer: fx.Node, own: dict[str, Any], tensors: tuple[Tensor, Tensor]
) -> None:
    """Let the layer read new constants, under the names of its old ones."""
    layer.args, layer.kwargs = (own["input"],), {}  # nobody reads the old constants any more
    names = {part: str(own[part].target) for part in ("weight", "bias") if own[part] is not None}
    names.setdefault("bias", f"{names['weight'].rpartition('.')[0]}.bias".lstrip("."))
    for part in names:
        if own[part] is not None and not own[part].users:
            graph.graph.erase_node(own[part])
    results = [
        put_constant(graph, names[p], t, like=layer)
        for p, t in zip(_PARTS[:2], tensors, strict=True)
    ]
    layer.args = (own["input"], *results, *list(own.values())[3:])


def _by_output(factor: Tensor, weight: torch.Size, groups: int) -> Tensor:
    """factor [n] in a shape that broadcasts with a weight [n, ...] or, with `groups`, that of a
    transposed convolution [inputs, n / groups, ...]."""
    if not groups:
        return factor.reshape(-1, *[1] * (len(weight) - 1))
    each = factor.reshape(groups, 1, -1).expand(groups, weight[0] // groups, -1)
    return each.reshape(weight[0], -1, *[1] * (len(weight) - 2))
