# SPDX-License-Identifier: BSD-3-Clause
"""Quantize and dequantize nodes of torch and torchao as ours, where a format gives their bits."""

from collections.abc import Callable
from typing import Any

from torch import fx

from blockscale.graph.adoption import affine, decomposed
from blockscale.graph.adoption.calls import Call, NoFormatError
from blockscale.graph.adoption.written import Known, choose_quantize, dequantize, quantize
from blockscale.graph.nodes import say

_READERS: dict[str, Callable[[fx.Node], Call]] = {**decomposed.READERS, **affine.READERS}


def schema_name(node: fx.Node) -> str:
    """`quantized_decomposed::quantize_per_tensor.tensor` of a node that calls it; "" for others.

    By name, because the ops exist only where their library was imported.
    """
    schema: Any = getattr(node.target, "_schema", None) if node.op == "call_function" else None
    if schema is None:
        return ""
    overload = f".{schema.overload_name}" if schema.overload_name else ""
    return f"{schema.name}{overload}"


def translate(graph: fx.GraphModule) -> int:
    """Change the nodes that have a format, in place; returns how many. Notes say why."""
    count = 0
    packed: Known = {}
    for node in list(graph.graph.nodes):
        name = schema_name(node)
        if name not in _READERS:
            if is_foreign(node):
                say(graph, node, f"{name} has no counterpart and stays")
            continue
        try:
            found = _READERS[name](node)
            write = _WRITERS[found.kind]
            write(graph, node, found, packed)
        except NoFormatError as error:
            say(graph, node, f"{name} stays as it is: {error}")
            continue
        count += 1
    return count


def is_foreign(node: fx.Node) -> bool:
    """Whether another library's node quantizes or dequantizes."""
    library, _, name = schema_name(node).partition("::")
    quantizes = "quant" in name and "choose" not in name
    return library in ("quantized_decomposed", "torchao") and quantizes


_WRITERS = {"quantize": quantize, "dequantize": dequantize, "choose": choose_quantize}
