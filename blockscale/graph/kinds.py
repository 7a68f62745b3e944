# SPDX-License-Identifier: BSD-3-Clause
"""Which ops of a program are layers with parameters, and the torch.nn layer that each one is."""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from blockscale.graph.nodes import arguments, scope
from blockscale.layers.kinds import Conv1D

aten = torch.ops.aten


@dataclass
class LayerNode:
    """A node that is a layer.

    module: the layer, which holds the program's own parameters
    x: what it is called with
    weight: the name of its weight in the program, None without one
    kinds: what the layer's class may be called in the model
    last: the node whose value is the layer's, if that is not the node itself
    """

    module: nn.Module
    x: fx.Node
    weight: str | None
    kinds: tuple[str, ...]
    last: fx.Node | None = None


Maker = Callable[[fx.GraphModule, fx.Node], LayerNode | None]


def parameter(graph: fx.GraphModule, node: object) -> Tensor | None:
    """The parameter or constant that a node reads, floats alone; None for any other node."""
    if not isinstance(node, fx.Node) or node.op != "get_attr":
        return None
    value: Any = operator.attrgetter(str(node.target))(graph)
    return value if isinstance(value, Tensor) and value.is_floating_point() else None


def _hold(layer: nn.Module, **tensors: Tensor | None) -> None:
    """Give a layer, which is then in evaluation, these parameters, which stay the program's own."""
    for name, tensor in tensors.items():
        if tensor is not None and not isinstance(tensor, nn.Parameter):
            tensor = nn.Parameter(tensor, requires_grad=False)  # noqa: PLW2901
        layer.register_parameter(name, tensor)
    layer.eval()


def linear(graph: fx.GraphModule, node: fx.Node) -> LayerNode | None:
    """linear(x, weight [n, k], bias)."""
    inputs = arguments(node)
    weight, bias = parameter(graph, inputs["weight"]), parameter(graph, inputs["bias"])
    if weight is None or weight.ndim != 2 or (inputs["bias"] is not None and bias is None):
        return None
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    _hold(layer, weight=weight, bias=bias)
    return LayerNode(layer, inputs["input"], inputs["weight"].target, ("Linear",))


def addmm(graph: fx.GraphModule, node: fx.Node) -> LayerNode | None:
    """addmm(bias, x [m, k], weight [k, n]), or mm: GPT-2's Conv1D, or a linear layer that was
    decomposed, whose weight is transposed before."""
    inputs = arguments(node)
    if inputs.get("beta", 1) != 1 or inputs.get("alpha", 1) != 1:
        return None
    x = inputs["mat1"] if "mat1" in inputs else inputs["self"]
    from_bias = inputs["self"] if "mat1" in inputs else None
    bias = parameter(graph, from_bias)
    at, transposed = inputs["mat2"], False
    if isinstance(at, fx.Node) and _is_transpose(at):
        at, transposed = at.args[0], True
    weight = parameter(graph, at)
    if weight is None or (from_bias is not None and (bias is None or bias.ndim != 1)):
        return None
    if transposed:
        layer: nn.Module = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    else:
        layer = Conv1D(weight.shape[1], weight.shape[0])
    _hold(layer, weight=weight, bias=bias)
    whole = _around(node, x)
    names = ("Linear",) if transposed else ("Conv1D",)
    if whole is None:
        return LayerNode(layer, x, at.target, names)
    return LayerNode(layer, whole[0], at.target, names, whole[1])


def _is_transpose(node: fx.Node) -> bool:
    """Whether it transposes a matrix."""
    if node.op != "call_function":
        return False
    if node.target is aten.t.default:
        return True
    if node.target is aten.permute.default:
        return list(node.args[1]) in ([1, 0], [-1, -2])  # type: ignore[arg-type]
    return node.target is aten.transpose.int and set(node.args[1:]) in ({0, 1}, {-1, -2})


_VIEWS = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)


def _around(node: fx.Node, rows: Any) -> tuple[fx.Node, fx.Node] | None:
    """(x [..., k], the node that views the result as [..., n]) where the product's rows are a view
    of x and nothing else reads it."""
    if rows.op != "call_function" or rows.target not in _VIEWS or len(node.users) != 1:
        return None
    after, x = next(iter(node.users)), rows.args[0]
    if after.op != "call_function" or after.target not in _VIEWS:
        return None
    value, result = x.meta.get("val"), after.meta.get("val")
    if value is None or result is None or value.ndim != result.ndim:
        return None
    same = all(str(a) == str(b) for a, b in zip(value.shape[:-1], result.shape[:-1], strict=True))
    return (x, after) if same and len(rows.meta["val"].shape) == 2 else None


_CONVS = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}
_TRANSPOSED = {3: nn.ConvTranspose1d, 4: nn.ConvTranspose2d, 5: nn.ConvTranspose3d}


def conv(graph: fx.GraphModule, node: fx.Node) -> LayerNode | None:
    """conv1d, conv2d, conv3d, conv_transpose*, and what they are decomposed to."""
    inputs = arguments(node)
    weight, bias = parameter(graph, inputs["weight"]), parameter(graph, inputs["bias"])
    if weight is None or (inputs["bias"] is not None and bias is None):
        return None
    name = str(node.target)
    transposed = inputs.get("transposed", "transpose" in name)
    groups, dims = int(inputs["groups"]), weight.ndim - 2
    settings: dict[str, Any] = {
        each: _each(inputs[each], dims) for each in ("stride", "padding", "dilation")
    }
    if transposed:
        settings["output_padding"] = _each(inputs["output_padding"], dims)
        sizes = weight.shape[0], weight.shape[1] * groups
    else:
        sizes = weight.shape[1] * groups, weight.shape[0]
    kind: Any = (_TRANSPOSED if transposed else _CONVS)[weight.ndim]
    kernel = tuple(weight.shape[2:])
    layer = kind(*sizes, kernel, groups=groups, bias=bias is not None, device="meta", **settings)
    _hold(layer, weight=weight, bias=bias)
    x = inputs["input"]
    if (padded := _padding(x, node)) is not None:
        # the convolution's own padding, of a mode that torch's convolutions do not know
        x, layer._reversed_padding_repeated_twice, layer.padding_mode = padded
    return LayerNode(layer, x, inputs["weight"].target, (kind.__name__,))


def _padding(pad: Any, node: fx.Node) -> tuple[fx.Node, list[int], str] | None:
    """(what is padded, how much, in which mode) where a node pads for this convolution alone, in
    the forward of the same layer."""
    if pad.op != "call_function" or pad.target is not aten.pad.default or len(pad.users) != 1:
        return None
    inputs = arguments(pad)
    if inputs["mode"] == "constant" or scope(pad) != scope(node):
        return None
    return inputs["self"], [int(size) for size in inputs["pad"]], inputs["mode"]


def _each(sizes: Any, dims: int) -> Any:
    """A size for each dimension; torch takes one for all."""
    if isinstance(sizes, str):
        return sizes
    items = tuple(sizes) if isinstance(sizes, list | tuple) else (sizes,)
    return items * dims if len(items) == 1 else items


def embedding(graph: fx.GraphModule, node: fx.Node) -> LayerNode | None:
    """embedding(weight, indices, padding_idx)."""
    inputs = arguments(node)
    weight = parameter(graph, inputs["weight"])
    if weight is None or weight.ndim != 2:
        return None
    padding = inputs["padding_idx"]
    layer = nn.Embedding(1, 1, device="meta")
    layer.num_embeddings, layer.embedding_dim = weight.shape
    layer.padding_idx = None if padding is None or padding < 0 else padding
    _hold(layer, weight=weight)
    return LayerNode(layer, inputs["indices"], inputs["weight"].target, ("Embedding",))


_NORMS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}


def batch_norm(graph: fx.GraphModule, node: fx.Node) -> LayerNode | None:
    """batch_norm(x, weight, bias, running mean, running variance, training, momentum, eps)."""
    inputs = arguments(node)
    mean, var = parameter(graph, inputs["running_mean"]), parameter(graph, inputs["running_var"])
    value = inputs["input"].meta.get("val")
    if mean is None or var is None or value is None:
        return None
    layer = _NORMS[value.ndim](
        mean.numel(), inputs["eps"], inputs["momentum"], inputs["weight"] is not None, device="meta"
    )
    layer.register_buffer("running_mean", mean)
    layer.register_buffer("running_var", var)
    layer.register_buffer("num_batches_tracked", torch.zeros((), dtype=torch.int64))
    weight, bias = parameter(graph, inputs["weight"]), parameter(graph, inputs["bias"])
    _hold(layer, weight=weight, bias=bias)
    at = inputs["weight"] if inputs["weight"] is not None else inputs["running_mean"]
    name = str(at.target).replace("running_mean", "weight")
    return LayerNode(layer, inputs["input"], name, (type(layer).__name__,))


def dropout(graph: fx.GraphModule, node: fx.Node) -> LayerNode | None:
    """dropout(x, p, train)."""
    del graph
    inputs = arguments(node)
    return LayerNode(nn.Dropout(inputs["p"]).eval(), inputs["input"], None, ("Dropout",))


QUANTIZED: dict[Any, Maker] = {
    aten.linear.default: linear,
    aten.addmm.default: addmm,
    aten.mm.default: addmm,
    aten.conv1d.default: conv,
    aten.conv2d.default: conv,
    aten.conv3d.default: conv,
    aten.conv1d.padding: conv,
    aten.conv2d.padding: conv,
    aten.conv3d.padding: conv,
    aten.conv_transpose1d.default: conv,
    aten.conv_transpose2d.input: conv,
    aten.conv_transpose3d.input: conv,
    aten.convolution.default: conv,
    aten.embedding.default: embedding,
}
TRAINED = QUANTIZED | {aten.batch_norm.default: batch_norm, aten.dropout.default: dropout}


def equal(one: nn.Module, other: nn.Module) -> bool:
    """Whether two layers are the same: of one kind, with the same tensors and settings."""
    if type(one) is not type(other) or one.extra_repr() != other.extra_repr():
        return False
    tensors = [{**dict(m._parameters), **dict(m._buffers)} for m in (one, other)]
    return tensors[0].keys() == tensors[1].keys() and all(
        tensors[0][name] is tensors[1][name] or name == "num_batches_tracked" for name in tensors[0]
    )
