# SPDX-License-Identifier: BSD-3-Clause
"""Where the nodes of a float ONNX model read weights: what they are, and what a layer's name is.

Names of layers are those of stored tensors without `.weight`; an exporter that renames them, such
as torch's old one (`onnx::MatMul_17`), leaves the module's path in the node's name.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from blockscale.core.pack import grouped_layout, of_convolution, stored_shape
from blockscale.export.to_onnx.weight import Move

OPS = ("MatMul", "Gemm", "Conv", "ConvTranspose", "Gather")
FLOATS = {1: torch.float32, 10: torch.float16, 16: torch.bfloat16}  # TensorProto.DataType
TYPES = {dtype: kind for kind, dtype in FLOATS.items()}
STANDARD = ("", "ai.onnx")
_NO_NAME = re.compile(r"(onnx::\w+|val_\d+|Constant\w*|[\w:.]*_?\d+|\d+)")
PASSED = ("Identity", "Transpose")


@dataclass(frozen=True)
class Site:
    """A node that reads a weight.

    number, node: where it stands in the graph, and the node (NodeProto)
    at, data: which of its inputs the weight is, and what the other is called
    tensor: the stored tensor's name; layer: what recipes and ledgers call it
    layout: how the tensor is quantized (core.pack); moves: from there to what the node reads
    """

    number: int
    node: Any
    at: int
    data: str
    tensor: str
    layer: str
    layout: str
    moves: tuple[Move, ...]

    @property
    def kind(self) -> str:
        """The node's operator."""
        return str(self.node.op_type)

    @property
    def name(self) -> str:
        """What codes and scales are called after, as in files of ours: `encoder.fc.weight`."""
        return self.tensor if self.layer == self.tensor else f"{self.layer}.weight"


class BiasPlace(NamedTuple):
    """Where a bias is added: by the node that gives `output`, as its input `at`, a stored tensor's
    name; "" where there is none yet."""

    output: str
    at: int
    tensor: str


_ODD = "bias not corrected: it is no stored vector that is added as it is"


@dataclass
class FloatModel:
    """A model (ModelProto) and its stored tensors by name, in order.

    hidden: the tensors that graphs inside of its nodes (If, Loop, Scan) read
    """

    proto: Any
    tensors: dict[str, Any] = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, proto: Any) -> "FloatModel":
        """Of a model whose constants become stored tensors, in place."""
        graph = proto.graph
        _store_constants(graph)
        tensors = {each.name: each for each in graph.initializer}
        for each in tensors.values():
            _as_raw(each)
        return cls(proto, tensors, set(read_inside(graph.node)) & tensors.keys())

    def values(self, name: str) -> Tensor:
        """A stored tensor of floats, in its own dtype."""
        from onnx import numpy_helper

        proto = self.tensors[name]
        array = numpy_helper.to_array(proto)
        if FLOATS[proto.data_type] == torch.bfloat16:
            bits = np.ascontiguousarray(array).view(np.int16)
            return torch.from_numpy(bits.copy()).view(torch.bfloat16)
        return torch.from_numpy(np.ascontiguousarray(array).copy())

    def shape(self, name: str) -> tuple[int, ...]:
        """The sizes of a stored tensor."""
        return tuple(self.tensors[name].dims)

    def sites(self) -> list[Site]:
        """Every node that reads a weight of floats, in the order in which they run."""
        makers = {name: node for node in self.proto.graph.node for name in node.output}
        result: list[Site] = []
        for number, node in enumerate(self.proto.graph.node):
            if node.op_type not in OPS or node.domain not in STANDARD:
                continue
            each = (self._site(number, node, at, makers) for at in _weights_of(node))
            result += list(islice(filter(None, each), 1))
        return _named_apart(result)

    def bias_of(self, site: Site) -> "BiasPlace | str":
        """Where what a site's node gives gets its bias, also where it has none yet; or why nothing
        can be added there."""
        node, shape = site.node, self.shape(site.tensor)
        rows = stored_shape(shape, site.layout)[0]
        convolution = of_convolution(site.layout)
        if site.kind == "MatMul":
            place = self._added_behind(node) if site.at == 1 and len(shape) == 2 else None
        else:
            name = node.input[2] if len(node.input) > 2 else ""
            place = BiasPlace(node.output[0], 2, name) if name or convolution else None
        if place is None or site.kind == "Gather":
            return "no bias to correct"
        factors = {attributes(node).get(each, 1.0) for each in ("alpha", "beta")} - {1.0}
        return (
            _ODD if factors or (place.tensor and not self._is_vector(place.tensor, rows)) else place
        )

    def _added_behind(self, node: Any) -> "BiasPlace | None":
        """The Add of a stored tensor that is all that reads what a node gives."""
        [y], graph = node.output, self.proto.graph
        readers = [each for each in graph.node if y in (*each.input, *read_inside([each]))]
        if [each.op_type for each in readers] != ["Add"] or y in [o.name for o in graph.output]:
            return None
        [add] = readers
        at = 1 if add.input[0] == y else 0
        stored = add.input[at] in self.tensors
        return BiasPlace(add.output[0], at, add.input[at]) if stored else None

    def _is_vector(self, name: str, size: int) -> bool:
        """Whether a stored tensor holds so many floats, along its last dimension alone."""
        tensor = self.tensors.get(name)
        if tensor is None or tensor.data_type not in FLOATS:
            return False
        return list(tensor.dims[-1:]) == [size] and prod(tensor.dims) == size

    def _stored(self, name: str, makers: Mapping[str, Any]) -> tuple[str, bool] | None:
        """The stored tensor of floats behind a name, and whether it is transposed on its way."""
        transposed = False
        while name not in self.tensors:
            node = makers.get(name)
            if node is None or node.op_type not in PASSED or node.domain not in STANDARD:
                return None
            if node.op_type == "Transpose":
                if list(attributes(node).get("perm", (1, 0))) != [1, 0]:
                    return None
                transposed = not transposed
            name = node.input[0]
        kind = self.tensors[name].data_type
        return (name, transposed) if kind in FLOATS and len(self.shape(name)) > 1 else None

    def _site(self, number: int, node: Any, at: int, makers: Mapping[str, Any]) -> Site | None:
        stored = self._stored(node.input[at], makers)
        if stored is None:
            return None
        tensor, transposed = stored
        layout = _layout(node, at, transposed, len(self.shape(tensor)))
        if layout is None:
            return None
        moves = _moves(layout, self.shape(tensor))
        if transposed:
            moves = (*moves, ("permute", (1, 0)))
        data = node.input[1 if at == 0 else 0]
        return Site(number, node, at, data, tensor, _layer(tensor, node), layout, moves)


def inputs_of(graph: Any) -> dict[str, int | None]:
    """{name: rank} of what a graph (GraphProto) is called with; None where it says none."""
    stored = {each.name for each in graph.initializer}
    free = [each for each in graph.input if each.name not in stored]
    return {
        each.name: len(each.type.tensor_type.shape.dim)
        if each.type.tensor_type.HasField("shape")
        else None
        for each in free
    }


def _named_apart(sites: Iterable[Site]) -> list[Site]:
    """The same, where layers of one name and several tensors get numbers."""
    tensors: dict[str, list[str]] = {}
    result = []
    for site in sites:
        own = tensors.setdefault(site.layer, [])
        if site.tensor not in own:
            own.append(site.tensor)
        at = own.index(site.tensor)
        result.append(replace(site, layer=f"{site.layer}.{at}") if at else site)
    return result


def attributes(node: Any) -> dict[str, Any]:
    """{name: value} of a node's attributes."""
    from onnx import helper

    return {each.name: helper.get_attribute_value(each) for each in node.attribute}


def pads_by_output(options: Mapping[str, Any]) -> bool:
    """Whether what a convolution's node (its attributes) pads depends on the size of its output."""
    return bytes(options.get("auto_pad", b"")).startswith(b"SAME")


def padding_of(
    options: Mapping[str, Any], size: Iterable[int], kernel: tuple[int, ...]
) -> list[tuple[int, int]]:
    """What a convolution puts (before, after) an input of this size, along each dimension."""
    dims = len(kernel)
    if not pads_by_output(options):
        none = [0] * (2 * dims)
        pads = none if options.get("auto_pad") == b"VALID" else options.get("pads", none)
        return list(zip(pads[:dims], pads[dims:], strict=True))
    strides, dilations = (options.get(each, [1] * dims) for each in ("strides", "dilations"))
    result = []
    for n, k, s, d in zip(size, kernel, strides, dilations, strict=True):
        whole = max((-(-n // s) - 1) * s + d * (k - 1) + 1 - n, 0)
        less, more = whole // 2, whole - whole // 2
        result.append((less, more) if options["auto_pad"] == b"SAME_UPPER" else (more, less))
    return result


def _weights_of(node: Any) -> tuple[int, ...]:
    """Which inputs of a node may be weights; of a product one is, the right one first."""
    return {"Gather": (0,), "MatMul": (1, 0)}.get(node.op_type, (1,))


def _layout(node: Any, at: int, transposed: bool, rank: int) -> str | None:
    """How a tensor of this rank is quantized, along the numbers that the node adds up; None where
    it is no weight of a layer."""
    options, kind = attributes(node), node.op_type
    if kind in ("Conv", "ConvTranspose"):
        if transposed or rank < 3:
            return None
        return "channels_last" if kind == "Conv" else grouped_layout(int(options.get("group", 1)))
    if kind == "Gather":
        return None if transposed or rank != 2 or options.get("axis", 0) != 0 else "plain"
    along_last = bool(options.get("transB", 0)) if kind == "Gemm" else at == 0
    return "plain" if along_last != transposed else "transposed"


def _moves(layout: str, shape: tuple[int, ...]) -> tuple[Move, ...]:
    """From a tensor as it is quantized to the tensor as it is stored in the file."""
    rank = len(shape)
    if layout == "transposed":
        return (("permute", (*range(rank - 2), rank - 1, rank - 2)),)
    if layout == "channels_last":
        back = (0, rank - 1, *range(1, rank - 1))
        return ("view", (shape[0], *shape[2:], shape[1])), ("permute", back)
    if not of_convolution(layout):
        return ()
    groups = stored_shape(shape, layout)[0] // shape[1]
    apart = (groups, *shape[1:], shape[0] // groups)
    back = (0, rank, *range(1, rank))
    return ("view", apart), ("permute", back), ("view", shape)


def _layer(tensor: str, node: Any) -> str:
    """What a layer is called: by its tensor, or by the node where the tensor has no name."""
    if _NO_NAME.fullmatch(tensor) and "/" in node.name:
        path = [part for part in node.name.split("/") if part]
        return ".".join(path[:-1]) or path[-1]
    return tensor.removesuffix(".weight")


def bytes_of(values: Tensor) -> bytes:
    """Numbers as a stored tensor has them."""
    return values.flatten().contiguous().view(torch.uint8).numpy().tobytes()


def _as_raw(tensor: Any) -> None:
    """Store a tensor's numbers as bytes, as in all files that are written here."""
    from onnx import TensorProto, numpy_helper

    if not tensor.HasField("raw_data") and tensor.data_type != TensorProto.STRING:
        name, text = tensor.name, tensor.doc_string
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), name))
        tensor.doc_string = text


def _store_constants(graph: Any) -> None:
    """Make initializers of the tensors in Constant nodes, in place."""
    for i in reversed(range(len(graph.node))):
        node = graph.node[i]
        if node.op_type != "Constant" or node.domain not in STANDARD:
            continue
        value = next((each.t for each in node.attribute if each.name == "value"), None)
        if value is not None and value.data_type in FLOATS and prod(value.dims) > 1:
            stored = graph.initializer.add()
            stored.CopyFrom(value)
            stored.name = node.output[0]
            del graph.node[i]


def read_inside(nodes: Any, inside: bool = False) -> Iterator[str]:
    """The names that graphs inside of nodes read, in any depth."""
    for node in nodes:
        if inside:
            yield from node.input
        for each in node.attribute:
            for graph in (*each.graphs, *([each.g] if each.HasField("g") else [])):
                yield from (out.name for out in graph.output)
                yield from read_inside(graph.node, True)
