# SPDX-License-Identifier: BSD-3-Clause
"""The initializers and nodes of an ONNX file, and where the bytes of each tensor lie.

Field numbers: onnx/onnx.proto of ONNX 1.23. The package onnx is not needed.
"""

import struct
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path

import numpy as np

from blockscale.core.untrusted import LONGEST, quote
from blockscale.export.auditing import protobuf
from blockscale.export.auditing.entries import DamagedError, ReadBudget, file_bytes
from blockscale.export.auditing.onnx_file import TYPES, Node, OnnxGraph, node, outside
from blockscale.export.checkpoints.places import Place
from blockscale.files.metadata import FileError

_NUMBERS = {  # types whose numbers may lie in a field of varints: (field, struct's letter)
    "uint8": (5, "B"), "int8": (5, "b"), "uint16": (5, "H"), "int16": (5, "h"), "int32": (5, "i"),
    "bool": (5, "?"), "float16": (5, "H"), "bfloat16": (5, "H"), "float8e4m3fn": (5, "B"),
    "float8e4m3fnuz": (5, "B"), "float8e5m2": (5, "B"), "float8e5m2fnuz": (5, "B"),
    "float8e8m0": (5, "B"), "uint4": (5, "B"), "int4": (5, "B"), "float4e2m1": (5, "B"),
    "uint2": (5, "B"), "int2": (5, "B"), "float6e2m3": (5, "B"), "float6e3m2": (5, "B"),
    "int64": (7, "q"), "uint32": (11, "I"), "uint64": (11, "Q"),
}  # fmt: skip
_WHOLE = {"float32": 4, "float64": 10}  # numbers that lie as they are, and their field
_RAW, _EXTERNAL = 9, 14


@dataclass(frozen=True)
class Tensor:
    """A stored tensor. type: ONNX's name in small letters; bits: of one element; about: its
    description; constant: whether a node holds it, and not the list of initializers"""

    name: str
    type: str
    bits: int
    shape: tuple[int, ...]
    place: Place
    about: str = ""
    constant: bool = False

    @property
    def elements(self) -> int:
        return prod(self.shape)


@dataclass
class Model:
    """What an ONNX file holds.

    tensors: initializers, and what Constant nodes give, by name; nodes: in the file's order
    properties: what it says about itself, such as its producer
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    properties: dict[str, object] = field(default_factory=dict)

    @property
    def opset(self) -> int:
        """The version of the standard operators; 0 if the file says none."""
        value = self.properties.get("opset.ai.onnx", 0)
        return value if isinstance(value, int) else 0

    @property
    def graph(self) -> OnnxGraph:
        """The nodes by what they read and make."""
        return OnnxGraph(self.nodes)


def read_model(path: Path) -> Model:
    """The head of an ONNX file. Raises FileError for one that is damaged, cut or too large."""
    try:
        with file_bytes(path) as data:
            return _Reading(path, data).model()
    except (DamagedError, MemoryError, OverflowError) as error:
        raise FileError(f"{path}: this ONNX file cannot be read: {error}") from None


class _Reading:
    """Reads one file, once."""

    def __init__(self, path: Path, data: memoryview):
        self._path, self._data, self._budget = path, data, ReadBudget()
        self._first = np.frombuffer(data, np.uint8).ctypes.data

    def model(self) -> Model:
        outer = protobuf.fields(self._data, self._budget)
        graphs, opsets = protobuf.messages(outer, 7), protobuf.messages(outer, 8)
        if len(graphs) != 1 or not opsets:
            raise DamagedError("it has no ONNX graph and opset")
        graph = protobuf.fields(graphs[0], self._budget)
        result = Model(properties=self._properties(outer, opsets))
        for each in protobuf.messages(graph, 5):
            self._add(result, self._tensor(each))
        if protobuf.messages(graph, 15):
            raise DamagedError("it has sparse initializers, which are not supported")
        for each in protobuf.messages(graph, 1):
            read = node(each, self._budget)
            if read.op == "Constant":
                self._constant(result, each, read)
            else:
                result.nodes.append(read)
        return result

    def _properties(self, outer: protobuf.Fields, opsets: list[memoryview]) -> dict[str, object]:
        data: dict[str, object] = {"ir_version": protobuf.number(outer, 1)}
        for number, key in ((2, "producer_name"), (3, "producer_version"), (6, "doc_string")):
            if text := protobuf.text(outer, number):
                data[key] = text[:LONGEST]
        for each in opsets:
            values = protobuf.fields(each, self._budget)
            data[f"opset.{protobuf.text(values, 1) or 'ai.onnx'}"] = protobuf.number(values, 2)
        for each in protobuf.messages(outer, 14):
            pair = protobuf.fields(each, self._budget)
            data[protobuf.text(pair, 1)] = protobuf.text(pair, 2)[:LONGEST]
        return data

    def _add(self, model: Model, tensor: Tensor) -> None:
        if tensor.name in model.tensors:
            raise DamagedError(f"it has the tensor {quote(tensor.name)} twice")
        model.tensors[tensor.name] = tensor

    def _constant(self, model: Model, data: memoryview, read: Node) -> None:
        for attribute in protobuf.messages(protobuf.fields(data, self._budget), 5):
            for value in protobuf.messages(protobuf.fields(attribute, self._budget), 5):
                tensor = self._tensor(value, read.outputs[0] if read.outputs else "")
                self._add(model, replace(tensor, constant=True))

    def _tensor(self, data: memoryview, name: str = "") -> Tensor:
        values = protobuf.fields(data, self._budget)
        name, kind = name or protobuf.text(values, 8), protobuf.number(values, 2)
        if len(name) > LONGEST:
            raise DamagedError(f"a tensor's name has {len(name):,} characters")
        if kind not in TYPES:
            text = f"tensor {quote(name)} is of type {kind}, which ONNX does not have"
            raise DamagedError(text)
        label, bits = TYPES[kind]
        shape = tuple(protobuf.numbers(values, 1, self._budget))
        if any(size < 0 for size in shape) or prod(size for size in shape if size) > 2**60:
            raise DamagedError(f"tensor {quote(name)} has the shape {quote(shape)}")
        expected = (prod(shape) * bits + 7) // 8
        place = self._place(values, name, label, expected)
        if label != "string" and place.nbytes != expected:
            raise DamagedError(
                f"tensor {quote(name)} {list(shape)} {label} has {place.nbytes:,} bytes, "
                f"expected {expected:,}"
            )
        about = protobuf.text(values, 12)[:LONGEST]
        return Tensor(name, label, bits, shape, place, about)

    def _place(self, result: protobuf.Fields, name: str, label: str, expected: int) -> Place:
        if protobuf.number(result, _EXTERNAL) == 1:
            file, start, size = outside(result, self._path, name, self._budget)
            # writers may leave the length out: then it is all that the tensor needs
            return Place(
                file, start, expected if size > expected and not _has_length(result) else size
            )
        if raw := protobuf.messages(result, _RAW):
            start = np.frombuffer(raw[-1], np.uint8).ctypes.data - self._first if raw[-1] else 0
            return Place(self._path, start, len(raw[-1]))
        value = self._numbers(result, label)
        return Place(self._path, 0, len(value), value)

    def _numbers(self, result: protobuf.Fields, label: str) -> bytes:
        """Bytes of a tensor whose numbers lie in a typed field."""
        if label in _WHOLE:
            every = protobuf.messages(result, _WHOLE[label])
            return b"".join(bytes(each) for each in every)
        if label not in _NUMBERS:
            return b""
        where, letter = _NUMBERS[label]
        numbers = protobuf.numbers(result, where, self._budget)
        mask = (1 << 8 * struct.calcsize(letter)) - 1
        return b"".join(
            (number & mask).to_bytes(struct.calcsize(letter), "little") for number in numbers
        )


def _has_length(result: protobuf.Fields) -> bool:
    """Whether an external tensor says how long it is."""
    budget = ReadBudget()
    pairs = [protobuf.fields(each, budget) for each in protobuf.messages(result, 13)]
    return any(protobuf.text(pair, 1) == "length" for pair in pairs)
