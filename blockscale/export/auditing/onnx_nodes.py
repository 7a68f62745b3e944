# SPDX-License-Identifier: BSD-3-Clause
"""What the nodes of an ONNX file compute with a tensor, and what onnxruntime makes of it.

What onnxruntime does was seen in 1.31 on a CPU (../shared/research/graph.md in the project's notes;
docs/export.md says it for users).
"""

from typing import NamedTuple

from blockscale.export.auditing.entries import FLOATS, Stored, is_part
from blockscale.export.auditing.limits import WAY

_INTEGERS = (
    "MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv", "QGemm", "MatMulIntegerToFloat",
    "DynamicQuantizeMatMul", "QAttention",
)  # fmt: skip
_PRODUCTS = (
    "MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "Gather", "LSTM", "GRU", "RNN",
)  # fmt: skip
_FUSED_BLOCKS = range(16, 257)


class Node(NamedTuple):
    """An operator, with its attributes that are whole numbers."""

    op: str
    domain: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, int]


class Graph:
    """Nodes, by what they read and what they give."""

    def __init__(self, nodes: list[Node]):
        self.readers: dict[str, list[Node]] = {}
        self.makers: dict[str, Node] = {}
        for node in nodes:
            for name in node.inputs:
                self.readers.setdefault(name, []).append(node)
            for name in node.outputs:
                self.makers[name] = node


def reader(tensor: Stored, graph: Graph) -> None:
    """Say of a tensor what reads it, whether it is a weight in codes, and what runtimes do."""
    if is_part(tensor.name):
        return
    found = _product(tensor.name, graph, set())
    if found is None:
        return
    product, way = found
    dequantized = next((node for node in way if node.op == "DequantizeLinear"), None)
    codes = (
        tensor.type not in FLOATS and tensor.bits <= 16 and tensor.type not in ("bool", "string")
    )
    as_scale = dequantized is not None and tensor.name in dequantized.inputs[1:]
    if not codes or as_scale:
        matrix = tensor.type in FLOATS and len(tensor.shape) > 1
        tensor.reader = f"{product.op} in float" if matrix else ""
        return
    tensor.low = True
    if product.op in _INTEGERS:
        tensor.reader = f"{product.op}: in integers"
        return
    if product.op == "MatMulNBits":
        tensor.reader = _nbits(product.attributes.get("accuracy_level", 0))
        return
    tensor.reader = f"decoded to float, {product.op} in float"
    if dequantized is not None and product.op in ("MatMul", "Gemm", "Conv"):
        tensor.reader += _fusions(tensor, dequantized, product, way, graph)


def _product(name: str, graph: Graph, seen: set[str]) -> tuple[Node, list[Node]] | None:
    """The first product on the way of a tensor, and the nodes before it."""
    if name in seen or len(seen) > WAY:
        return None
    seen.add(name)
    for node in graph.readers.get(name, []):
        if node.op in (*_PRODUCTS, *_INTEGERS, "MatMulNBits"):
            rows = node.inputs[:1] == [name] and not node.attributes.get("axis", 0)
            if node.op != "Gather" or rows:  # others spread scales, or take bytes apart
                return node, []
    for node in graph.readers.get(name, []):
        if node.op in ("Shape", "Size"):
            continue
        for output in node.outputs[:1]:
            if (found := _product(output, graph, seen)) is not None:
                return found[0], [node, *found[1]]
    return None


def _fusions(
    tensor: Stored, dequantized: Node, product: Node, way: list[Node], graph: Graph
) -> str:
    block = dequantized.attributes.get("block_size", 0)
    direct = way == [dequantized]
    activation = graph.makers.get(product.inputs[0])
    quantized = activation is not None and activation.op == "DequantizeLinear"
    explicit = len(dequantized.inputs) > 2 and (
        activation is None or activation.op != "DequantizeLinear" or len(activation.inputs) > 2
    )
    if quantized and tensor.bits == 8 and not block and direct and explicit:
        return " as written; onnxruntime fuses it and computes in integers"
    if block and not quantized and tensor.type.lstrip("u") in ("int2", "int4", "int8"):
        along_rows = dequantized.attributes.get("axis", 1) == 0
        if product.op == "MatMul" and direct and along_rows and block in _FUSED_BLOCKS:
            return f" as written; onnxruntime makes MatMulNBits of it, {_nbits(4)}"
    return ""


def _nbits(level: int) -> str:
    if level == 4:
        return (
            "which by default quantizes activations to int8 "
            "(session.qdq_matmulnbits_accuracy_level=0 keeps them in float)"
        )
    return f"MatMulNBits: activations in float (accuracy level {level})"
