# SPDX-License-Identifier: BSD-3-Clause
"""ONNX files: initializers by type and bytes, and what reads them.

Field numbers: onnx/onnx.proto of ONNX 1.23.
"""

from pathlib import Path
from typing import NamedTuple

from blockscale.core.elements import read_element
from blockscale.core.parse import parse
from blockscale.export.auditing import protobuf
from blockscale.export.auditing.entries import (
    FLOATS,
    WAY,
    DamagedError,
    FileTensor,
    ReadBudget,
    is_part,
)

# What the nodes of an ONNX file compute with a tensor, and what onnxruntime makes of it.
#
# What onnxruntime does was seen in 1.31 on a CPU (../shared/research/graph.md in the project's
# notes;
# docs/export.md says it for users).

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


class OnnxGraph:
    """Nodes, by what they read and what they give."""

    def __init__(self, nodes: list[Node]):
        self.readers: dict[str, list[Node]] = {}
        self.makers: dict[str, Node] = {}
        for node in nodes:
            for name in node.inputs:
                self.readers.setdefault(name, []).append(node)
            for name in node.outputs:
                self.makers[name] = node


def reader(tensor: FileTensor, graph: OnnxGraph) -> None:
    """Say of a tensor what reads it, whether it is a weight in codes, and what runtimes do."""
    if is_part(tensor.name):
        return
    result = _product(tensor.name, graph, set())
    if result is None:
        return
    product, way = result
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


def _product(name: str, graph: OnnxGraph, trail: set[str]) -> tuple[Node, list[Node]] | None:
    """The first product on the way of a tensor, and the nodes before it."""
    if name in trail or len(trail) > WAY:
        return None
    trail.add(name)
    for node in graph.readers.get(name, []):
        if node.op in (*_PRODUCTS, *_INTEGERS, "MatMulNBits"):
            rows = node.inputs[:1] == [name] and not node.attributes.get("axis", 0)
            if node.op != "Gather" or rows:  # others spread scales, or take bytes apart
                return node, []
    for node in graph.readers.get(name, []):
        if node.op in ("Shape", "Size"):
            continue
        for output in node.outputs[:1]:
            if (result := _product(output, graph, trail)) is not None:
                return result[0], [node, *result[1]]
    return None


def _fusions(
    tensor: FileTensor, dequantized: Node, product: Node, way: list[Node], graph: OnnxGraph
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


TYPES = {
    1: ("float32", 32), 2: ("uint8", 8), 3: ("int8", 8), 4: ("uint16", 16), 5: ("int16", 16),
    6: ("int32", 32), 7: ("int64", 64), 8: ("string", 8), 9: ("bool", 8), 10: ("float16", 16),
    11: ("float64", 64), 12: ("uint32", 32), 13: ("uint64", 64), 16: ("bfloat16", 16),
    17: ("float8e4m3fn", 8), 18: ("float8e4m3fnuz", 8), 19: ("float8e5m2", 8),
    20: ("float8e5m2fnuz", 8), 21: ("uint4", 4), 22: ("int4", 4), 23: ("float4e2m1", 4),
    24: ("float8e8m0", 8), 25: ("uint2", 2), 26: ("int2", 2), 27: ("float6e2m3", 6),
    28: ("float6e3m2", 6),
}  # fmt: skip
_OF_THE_GRAPH = 256  # numbers of a vector: the values of all codes of 8 bits
_TYPED = {4: 4, 5: 4, 7: 8, 10: 8, 11: 8}  # fields of numbers, and bytes of one where fixed


def tensors(data: memoryview, path: Path) -> list[FileTensor]:
    """The initializers of a file. Raises DamagedError."""
    budget = ReadBudget()
    model = protobuf.fields(data, budget)
    graphs = protobuf.messages(model, 7)
    if len(graphs) != 1 or not protobuf.messages(model, 8):
        raise DamagedError("it has no ONNX graph and opset")
    graph = protobuf.fields(graphs[0], budget)
    results = [_tensor(each, path, budget) for each in protobuf.messages(graph, 5)]
    results += _constants(graph, path, budget)
    nodes = OnnxGraph([node(each, budget) for each in protobuf.messages(graph, 1)])
    for tensor in results:
        reader(tensor, nodes)
        if tensor.low and tensor.format:
            _packed(tensor, tensor.format.replace(":", " ").replace("/", " "))
        _by_function(tensor, nodes)
    return results


def node(data: memoryview, budget: ReadBudget) -> Node:
    """A node with its attributes of whole numbers."""
    entries = protobuf.fields(data, budget)
    attributes = {}
    for each in protobuf.messages(entries, 5):
        values = protobuf.fields(each, budget)
        attributes[protobuf.text(values, 1)] = protobuf.number(values, 3)
    inputs, outputs = protobuf.texts(entries, 1), protobuf.texts(entries, 2)
    domain = protobuf.text(entries, 7)
    return Node(protobuf.text(entries, 4), domain, inputs, outputs, attributes)


def _constants(graph: protobuf.Fields, path: Path, budget: ReadBudget) -> list[FileTensor]:
    """Tensors that Constant nodes hold, under the names of what they give; none of the vectors of
    sizes, masks and values of codes that are the graph's."""
    results = []
    for each in protobuf.messages(graph, 1):
        values = protobuf.fields(each, budget)
        if protobuf.text(values, 4) != "Constant":
            continue
        for attribute in protobuf.messages(values, 5):
            for message in protobuf.messages(protobuf.fields(attribute, budget), 5):
                tensor = _tensor(message, path, budget)
                tensor.name = (protobuf.texts(values, 2) or [""])[0]
                if len(tensor.shape) > 1 or tensor.elements > _OF_THE_GRAPH:
                    results.append(tensor)
    return results


def _tensor(data: memoryview, path: Path, budget: ReadBudget) -> FileTensor:
    values = protobuf.fields(data, budget)
    name, kind = protobuf.text(values, 8), protobuf.number(values, 2)
    if kind not in TYPES:
        raise DamagedError(f"tensor {name!r} is of type {kind}, which ONNX does not have")
    label, bits = TYPES[kind]
    shape = tuple(protobuf.numbers(values, 1, budget))
    if any(size < 0 or size > 2**40 for size in shape):
        raise DamagedError(f"tensor {name!r} has the impossible shape {shape}")
    stored = FileTensor(name, label, shape, bits, 0, format=_format(protobuf.text(values, 12)))
    stored.nbytes = _nbytes(values, path, stored, budget)
    expected = (stored.elements * bits + 7) // 8
    in_field = not protobuf.messages(values, 9) and protobuf.number(values, 14) != 1
    if label != "string" and not in_field and stored.nbytes != expected:
        raise DamagedError(
            f"tensor {name!r} {list(shape)} {label} has {stored.nbytes:,} bytes, expected "
            f"{expected:,}"
        )
    return stored


def _nbytes(result: protobuf.Fields, path: Path, stored: FileTensor, budget: ReadBudget) -> int:
    if protobuf.number(result, 14) == 1:
        return _outside(result, path, stored, budget)
    if raw := protobuf.messages(result, 9):
        return len(raw[-1])
    total = 0
    for field in _TYPED:
        for value in result.get(field, []):
            total += _TYPED[field] if isinstance(value, int) else len(value)
    return total


def _outside(result: protobuf.Fields, path: Path, stored: FileTensor, budget: ReadBudget) -> int:
    return outside(result, path, stored.name, budget)[2]


def outside(
    values: protobuf.Fields, path: Path, name: str, budget: ReadBudget
) -> tuple[Path, int, int]:
    """Where a tensor lies that is in another file: the file, its first byte, how many.

    The file has to lie beside this one, or below, and hold them; it may be a link, as in caches of
    downloads. Raises DamagedError.
    """
    pairs = [protobuf.fields(each, budget) for each in protobuf.messages(values, 13)]
    data = {protobuf.text(pair, 1): protobuf.text(pair, 2) for pair in pairs}
    where = data.get("location", "")
    place = path.parent / where
    if not where or Path(where).is_absolute() or ".." in Path(where).parts:
        raise DamagedError(f"tensor {name!r} lies in {where!r}, outside the directory")
    if not place.is_file():
        raise DamagedError(f"tensor {name!r} lies in {where}, which is not there")
    start, size = _whole(data.get("offset", "0")), _whole(data.get("length", "-1"))
    rest = place.stat().st_size - start
    if start < 0 or size > rest:
        raise DamagedError(f"tensor {name!r} ends after the end of {where}")
    return place, start, rest if size < 0 else size


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise DamagedError(f"{text[:40]!r} is not a number of bytes") from None


def _by_function(tensor: FileTensor, graph: OnnxGraph) -> None:
    """Packed codes that a function of ours reads, as earlier files have them: its name says in
    which format."""
    for each in graph.readers.get(tensor.name, []):
        if tensor.low and each.op.startswith("dequantize_"):
            _, *words = each.op.split("_")
            words = words[:-1] if len(words) > 1 and words[-1].isdigit() else words  # of several
            _packed(tensor, " ".join(words))


def _packed(tensor: FileTensor, words: str) -> None:
    """Say of bytes which format's codes they are, the element first."""
    bits = _bits(words.partition(" ")[0])
    tensor.format, tensor.bits, tensor.elements = words, bits, tensor.nbytes * 8 // bits


def _format(description: str) -> str:
    """The format in a tensor's description, as our files have it of packed codes; or empty."""
    spelling = description.partition(" ")[0]  # behind it is their shape
    try:
        return parse(spelling).spelling if ":" in spelling else ""
    except ValueError:
        return ""


def _bits(element: str) -> int:
    try:
        return read_element(element).bits
    except ValueError:
        return 8
