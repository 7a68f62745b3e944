# SPDX-License-Identifier: BSD-3-Clause
"""One linear layer of a graph: its nodes, its formats and its sizes."""

import operator
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from blockscale.core.operand import UNQUANTIZED, Operand, Quantizer, Value
from blockscale.core.parse import parse
from blockscale.graph.constants import get, is_constant
from blockscale.graph.lowering import onednn
from blockscale.graph.lowering.kernels import has_kernel, misses
from blockscale.graph.lowering.way import of_ours
from blockscale.graph.nodes import arguments, bound, call, calls, ours, quantize_of
from blockscale.kernels.registry import supporting
from blockscale.ops.fused import FUSED
from blockscale.ops.linear import linear
from blockscale.ops.primitives import choose_quantize, quantize

OPEN = 2048  # rows where their number is open: many, since those calls take the time


class Product(NamedTuple):
    """What the time of a product depends on; all spellings are those of formats' own `spelling`.

    x, weight, y: formats; of floats empty
    has_scale: whether the result's scale is there beforehand
    rows, n, k: of x [rows, k] and the weight [n, k]; OPEN rows where their number is open
    """

    x: str
    weight: str
    y: str
    activation: str
    has_scale: bool
    rows: int
    n: int
    k: int


@dataclass(frozen=True)
class ProductNodes:
    """The nodes of a product.

    fused: whether it came as `fused_linear`
    x: floats, or codes with what stands beside them
    input: how floats x are quantized inside; UNQUANTIZED where x is codes or stays as it is
    """

    node: fx.Node
    fused: bool
    x: Value
    input: Quantizer
    weight: Value
    bias: fx.Node | None
    activation: str
    dtype: torch.dtype
    y: Quantizer


def parts_of(node: fx.Node) -> ProductNodes | None:
    """The parts of a node that is a linear layer in a quantized weight; None for others."""
    op = of_ours(node)
    if op is None or op.name not in ("fused_linear", "linear"):
        return None
    if op.name == "fused_linear":
        x, weight, bias, activation, dtype, y = bound(node, op)
        if not weight.fmt:
            return None
        return ProductNodes(node, True, x, UNQUANTIZED, weight, bias, activation, dtype, y)
    a = arguments(node)
    sizes = _sizes(a["x"])
    if sizes is None:
        return None
    by = (a[f"input_{name}"] for name in Quantizer._fields)
    operand = Value(
        a["weight"], a["scale"], a["zero_point"], a["outer"], a["fmt"], sizes[-1], a["more"]
    )
    dtype = node.meta["val"].dtype
    return ProductNodes(
        node, False, Value(a["x"]), Quantizer(*by), operand, a["bias"], "", dtype, UNQUANTIZED
    )


def product_of(parts: ProductNodes) -> Product | None:
    """What its time depends on; None where its sizes are not known."""
    x, weight = _sizes(parts.x.data), _sizes(parts.weight.data)
    if x is None or weight is None:
        return None
    k = parts.weight.size
    if not isinstance(k, int):
        return None
    rows = prod(x[:-1]) if _fixed(parts.x.data) else OPEN
    fmt = parts.x.fmt or parts.input.fmt
    static = parts.y.scale is not None
    return Product(
        spelling(fmt), spelling(parts.weight.fmt), spelling(parts.y.fmt), parts.activation, static,
        rows, weight[0], k,
    )  # fmt: skip


def spelling(fmt: str) -> str:
    """The one spelling of a format that may have several; empty stays."""
    return parse(fmt).spelling if fmt else ""


def floats_of(parts: ProductNodes) -> tuple[fx.Node, Quantizer] | None:
    """The floats that x was quantized from, and by what quantizer; None where that is not known."""
    source: Any = parts.x.data  # a node
    if not parts.x.fmt:
        return source, parts.input
    if calls(source, operator.getitem) and source.args[1] == 0:
        source = source.args[0]  # codes are the first result of choose_quantize
    quantizes = quantize_of(source)
    if quantizes is None or quantizes.by.fmt != parts.x.fmt:
        return None
    differs = quantizes.by.scale is not None and quantizes.by.scale is not parts.x.scale
    return None if differs else (quantizes.x, quantizes.by)


def _fixed(node: Any) -> bool:
    """Whether no size of its tensor is open."""
    return all(isinstance(size, int) for size in node.meta["val"].shape)


def _sizes(node: Any) -> list[int] | None:
    """The sizes of a node's tensor: of symbols, those that they were traced with."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    if not isinstance(value, Tensor):
        return None
    return [_hint(size) for size in value.shape]


def _hint(size: Any) -> int:
    if isinstance(size, int):
        return size
    hint = size.node.hint if size.node.has_hint() else None
    return 64 if hint is None else int(hint)


# The ways to run a linear layer on a CPU.
#
# kernel    our kernel of the op, on codes
# inside    our kernel of `linear` on floats, which quantizes them itself; then what follows
# onednn    oneDNN's product of 8-bit integers
# composed  decoded, multiplied as floats, encoded

WAYS = ("kernel", "inside", "onednn", "composed")
_AFTER = {"relu": torch.ops.aten.relu.default, "silu": torch.ops.aten.silu.default,
          "sigmoid": torch.ops.aten.sigmoid.default, "tanh": torch.ops.aten.tanh.default,
          "relu6": torch.ops.aten.relu6.default, "hardswish": torch.ops.aten.hardswish.default,
          "gelu": torch.ops.aten.gelu.default}  # fmt: skip
Quantized = dict[tuple[object, ...], Value]  # codes by what they are of


def refusals(parts: ProductNodes) -> dict[str, str | None]:
    """{way: why it cannot run this product, or None}."""
    return {
        "kernel": None if has_kernel(parts.node, "cpu") else "no kernel takes these formats",
        "inside": inside(parts, "cpu"),
        "onednn": onednn.unavailable() or _onednn(parts),
        "composed": misses(parts.node, "cpu") if parts.fused else "it was one op in the program",
    }


def inside(parts: ProductNodes, backend: str) -> str | None:
    """Why the backend's kernel of `linear` cannot quantize x itself for this product, or None."""
    if not parts.x.fmt and has_kernel(parts.node, backend):
        return "its input is float already, and it has its own kernel"
    floats = floats_of(parts)
    if floats is None:
        return "the floats that x was quantized from are no longer there"
    if isinstance(parts.x.data, fx.Node) and len(parts.x.data.users) > 1:
        return "its codes have other readers, and would be computed twice"
    if "val" not in floats[0].meta or floats[0].meta["val"].dtype != parts.dtype:
        return "it returns the dtype of its input, which is another one"
    if parts.activation and parts.activation not in _AFTER:
        return f"no op for {parts.activation} alone"
    formats = (parts.weight.fmt, parts.x.fmt)
    return None if supporting("linear", backend, formats, ()) else "no kernel takes these formats"


def _onednn(parts: ProductNodes) -> str | None:
    static = parts.y.scale is not None
    fmt = parts.x.fmt or parts.input.fmt
    return onednn.refuses(fmt, parts.weight.fmt, parts.activation, parts.y.fmt, static)


def rewrite(graph: fx.GraphModule, parts: ProductNodes, way: str, quantized: Quantized) -> None:
    """Let the node run in this way. It may be replaced; it computes the same up to its ulps.

    quantized: codes that earlier calls made, which equal ones use too
    """
    if way == "onednn":
        _as_onednn(graph, parts, quantized)
    elif way == "inside":
        _as_inside(graph, parts)


def _as_onednn(graph: fx.GraphModule, parts: ProductNodes, quantized: Quantized) -> None:
    node = parts.node
    if parts.x.fmt:  # it takes the same arguments
        node.target = onednn.LINEAR
        return
    value = _codes_of(graph, parts, quantized)
    fused, settings = FUSED["linear"], {"bias": parts.bias, "activation": ""}
    args = fused.flatten([value, parts.weight], settings, parts.dtype, parts.y)
    _first_of(graph, call(graph, onednn.LINEAR, args, like=node), node)


def _codes_of(graph: fx.GraphModule, parts: ProductNodes, quantized: Quantized) -> Value:
    """The codes of floats x, which other products of x use too."""
    by, size = parts.input, parts.weight.size
    x: Any = parts.x.data  # a node, as are all tensors of parts
    key = (x, by.fmt, _key(graph, by.scale), _key(graph, by.zero_point))
    if key in quantized:
        return quantized[key]
    if by.scale is not None:
        codes: Any = call(graph, ours.quantize.default, quantize.flatten(x, by), like=parts.node)
        quantized[key] = Value(codes, by.scale, by.zero_point, None, by.fmt, size)
        return quantized[key]
    args = choose_quantize.flatten(x, by.fmt, by.seed)
    quantize_node = call(graph, ours.choose_quantize.default, args, like=parts.node)
    count = 1 + len(by.format.parts)
    outputs: list[Any] = [
        call(graph, operator.getitem, (quantize_node, i), like=parts.node) for i in range(count)
    ]
    zero = outputs[2] if count > 2 else None
    quantized[key] = Value(outputs[0], outputs[1], zero, None, by.fmt, size)
    return quantized[key]


def _key(graph: fx.GraphModule, part: object) -> object:
    """A scale or a zero point, so that views of equal constants are equal."""
    if not isinstance(part, fx.Node):
        return repr(part)
    if is_constant(part):
        tensor = get(graph, part)
        return (str(tensor.dtype), *tensor.reshape(-1).tolist())
    if part.op != "call_function":
        return part
    return (str(part.target), *(_key(graph, each) for each in part.args))


def _as_inside(graph: fx.GraphModule, parts: ProductNodes) -> None:
    floats = floats_of(parts)
    assert floats is not None
    (x, by), node = floats, parts.node
    args = linear.flatten(x, Operand(*parts.weight), parts.bias, by)  # type: ignore[arg-type]
    y = call(graph, ours.linear.default, args, like=node)
    if parts.activation:
        y = call(graph, _AFTER[parts.activation], (y,), like=node)
    _quantized(graph, y, parts.y, node)


def _quantized(graph: fx.GraphModule, y: fx.Node, by: Quantizer, node: fx.Node) -> None:
    """Let the users of `node`, a list of results, take what quantizing y gives."""
    if by.fmt and by.scale is None:
        outputs = call(
            graph, ours.choose_quantize.default, choose_quantize.flatten(y, by.fmt, by.seed),
            like=node,
        )  # fmt: skip
        node.replace_all_uses_with(outputs)
        graph.graph.erase_node(node)
        return
    if by.fmt:
        y = call(graph, ours.quantize.default, quantize.flatten(y, by), like=node)
    for user in list(node.users):
        user.replace_all_uses_with(y)
        graph.graph.erase_node(user)
    graph.graph.erase_node(node)


def _first_of(graph: fx.GraphModule, outputs: fx.Node, node: fx.Node) -> None:
    """Let the users of `node`, one tensor, take the first of a list of results."""
    first = call(graph, operator.getitem, (outputs, 0), like=node)
    node.replace_all_uses_with(first)
    graph.graph.erase_node(node)
