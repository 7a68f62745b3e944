# SPDX-License-Identifier: BSD-3-Clause
"""An OpenVINO IR, version 11: layers and edges of its .xml, and where bytes of constants lie in the
.bin.
"""

from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, NoReturn
from xml.parsers import expat

import torch
from torch import Tensor

from blockscale.core.element import Element
from blockscale.core.pack import pack
from blockscale.core.untrusted import LONGEST, FileError, quote, read_regular
from blockscale.export.checkpoints.places import Place, packed_rows

# The layers and edges of an OpenVINO IR, version 11, from its .xml.
#
# The text comes from strangers: no document type and no entity is accepted, text is never kept but
# for sizes, and what is deep, long or of many parts is refused.

LARGEST_FILE = 1 << 28  # bytes of an .xml; one of a thousand layers has 5 MB
_LAYERS, _DEEPEST, _EDGES = 1_000_000, 100, 4_000_000
_VERSIONS = ("10", "11")
_DIGITS = 19  # of a number: 2^63 has as many


@dataclass
class IRLayer:
    """An operation. inputs: {its port: id of the layer that it reads}; shape: of its output"""

    id: str
    name: str
    type: str
    data: dict[str, str] = field(default_factory=dict)
    shape: tuple[int, ...] = ()
    inputs: list[str] = field(default_factory=list)


@dataclass
class IRGraph:
    """The outermost layers of a model, by id, and which layers read each."""

    name: str = ""
    version: str = ""
    layers: dict[str, IRLayer] = field(default_factory=dict)
    readers: dict[str, list[IRLayer]] = field(default_factory=dict)
    bodies: int = 0  # models inside of layers, whose weights are not looked at


def read_graph(path: Path) -> IRGraph:
    """The graph of an .xml. Raises FileError for one that is none, damaged or hostile."""
    reading = _IRReading()
    text = read_regular(path, LARGEST_FILE)
    try:
        reading.parser.Parse(text, True)
        return reading.finish()
    except (expat.ExpatError, ValueError) as error:
        raise FileError(f"{path}: this OpenVINO IR cannot be read: {error}") from None


class _IRReading:
    """What a parser's events are turned into."""

    def __init__(self) -> None:
        self.graph, self._path, self._text = IRGraph(), list[str](), ""
        self._layer: IRLayer | None = None
        self._edges: list[tuple[str, int, str]] = []
        self.parser: Any = expat.ParserCreate()
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._characters
        self.parser.StartDoctypeDeclHandler = self._refuse
        self.parser.EntityDeclHandler = self._refuse
        self.parser.ExternalEntityRefHandler = self._refuse

    def _refuse(self, *_: object) -> NoReturn:
        raise ValueError("it declares a document type or entities, which an IR may not have")

    def _start(self, tag: str, table: dict[str, str]) -> None:
        self._path.append(tag)
        if len(self._path) > _DEEPEST:
            raise ValueError(f"it is nested more than {_DEEPEST} elements deep")
        at = self._path
        if at == ["net"]:
            self.graph.name, self.graph.version = table.get("name", ""), table.get("version", "")
        elif at == ["net", "layers", "layer"]:
            self._begin(table)
        elif at == ["net", "layers", "layer", "data"] and self._layer is not None:
            self._layer.data = {key: value[:LONGEST] for key, value in table.items()}
        elif at == ["net", "edges", "edge"]:
            self._edge(table)
        elif tag == "body":
            self.graph.bodies += 1
        self._text = ""

    def _begin(self, table: dict[str, str]) -> None:
        layer = IRLayer(table.get("id", ""), table.get("name", ""), table.get("type", ""))
        if layer.id in self.graph.layers or len(self.graph.layers) >= _LAYERS:
            raise ValueError(
                f"it has the layer {quote(layer.id)} twice, or more than {_LAYERS:,} layers"
            )
        if len(layer.name) > LONGEST:
            raise ValueError(f"the name of layer {quote(layer.id)} is too long")
        self._layer = self.graph.layers[layer.id] = layer

    def _edge(self, table: dict[str, str]) -> None:
        ends = (
            table.get("from-layer", ""),
            number(table.get("to-port", "")),
            table.get("to-layer", ""),
        )
        self._edges.append(ends)
        if len(self._edges) > _EDGES:
            raise ValueError(f"it has more than {_EDGES:,} edges")

    def _characters(self, text: str) -> None:
        if self._path[-1] == "dim" and len(self._text) <= _DIGITS:
            self._text += text

    def _end(self, tag: str) -> None:
        if self._path == ["net", "layers", "layer", "output", "port", "dim"]:
            assert self._layer is not None
            self._layer.shape += (number(self._text),)
        self._path.pop()
        if tag == "layer" and len(self._path) == 2:
            self._layer = None

    def finish(self) -> IRGraph:
        """The graph, with its edges. Raises ValueError where they lead nowhere."""
        graph = self.graph
        if graph.version not in _VERSIONS or not graph.layers:
            raise ValueError(
                f"its version is {quote(graph.version)} (10 and 11 are supported), or it has "
                "no layers"
            )
        for source, _, target in sorted(self._edges, key=lambda edge: edge[1]):
            if source not in graph.layers or target not in graph.layers:
                raise ValueError(
                    f"an edge goes from {quote(source)} to {quote(target)}, one of which "
                    "does not exist"
                )
            graph.layers[target].inputs.append(source)
            graph.readers.setdefault(source, []).append(graph.layers[target])
        return graph


def number(text: str) -> int:
    """A whole number that is written in digits. Raises ValueError for another text."""
    text = text.strip()
    if text == "-1":  # a size that is not known
        return -1
    if not (text.isascii() and text.isdigit()) or len(text) > _DIGITS:
        raise ValueError(f"{quote(text)} is not a size or an offset")
    return int(text)


def sizes(text: str) -> tuple[int, ...]:
    """A shape: sizes with commas. Raises ValueError for another text."""
    return tuple(number(each) for each in text.split(",")) if text.strip() else ()


# The constants of an OpenVINO IR: where their bytes lie in the .bin, and how codes lie in them.

# Types that torch has, and others by their bits (openvino/core/type/element_type.hpp)
DTYPES = {
    "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64,
    "i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64,
    "u8": torch.uint8, "u16": torch.uint16, "u32": torch.uint32, "u64": torch.uint64,
    "boolean": torch.bool, "f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2,
    "f8e8m0": torch.float8_e8m0fnu,
}  # fmt: skip
BITS = {name: 8 * dtype.itemsize for name, dtype in DTYPES.items()}
BITS |= {"u1": 1, "u2": 2, "u3": 3, "u4": 4, "i4": 4, "u6": 6, "nf4": 4, "f4e2m1": 4}
# {type: bits of an element in the first two bytes of three, and in the last}
_SPLIT = {"u3": (2, 1), "u6": (4, 2)}
LARGEST = 1 << 46  # bytes


@dataclass(frozen=True)
class Constant:
    """A stored tensor. type: OpenVINO's name of its elements"""

    id: str
    name: str
    type: str
    shape: tuple[int, ...]
    place: Place

    @property
    def elements(self) -> int:
        return prod(self.shape)


def constant(layer: IRLayer, file: Path, size: int) -> Constant:
    """A Const layer's tensor in a .bin of `size` bytes. Raises ValueError where it lies outside.

    Strings and types that we do not know have a place, too.
    """
    info, name = layer.data, quote(layer.name)
    kind, shape = info.get("element_type", ""), sizes(info.get("shape", ""))
    start, nbytes = number(info.get("offset", "")), number(info.get("size", ""))
    if start < 0 or nbytes < 0 or start + nbytes > size:
        raise ValueError(f"constant {name} ends at byte {start + nbytes:,} of {size:,}")
    if any(n < 0 for n in shape) or prod(n for n in shape if n) > LARGEST:
        raise ValueError(f"constant {name} has the impossible shape {quote(info.get('shape', ''))}")
    expected = stored_bytes(kind, prod(shape))
    if expected is not None and nbytes != expected:
        raise ValueError(
            f"constant {name} {list(shape)} {kind} has {nbytes:,} bytes, expected {expected:,}"
        )
    return Constant(layer.id, layer.name, kind, shape, Place(file, start, nbytes))


def stored_bytes(kind: str, count: int) -> int | None:
    """What so many elements take; None for a type that is not known here."""
    if kind in _SPLIT:
        _, high = _SPLIT[kind]
        return -(-count * high // 8) * 3
    return -(-count * BITS[kind] // 8) if kind in BITS else None


def packed_codes(data: Tensor, kind: str, element: Element, shape: tuple[int, ...]) -> Tensor:
    """The bytes of a constant -> codes as we pack them."""
    if kind == "u1":
        codes = _from_the_top(data, 1).flatten()[: prod(shape)].reshape(shape)
        return pack(element.from_bits(codes), element)
    if kind not in _SPLIT:
        return packed_rows(data, element, shape)
    low, high = _SPLIT[kind]  # in each byte the first element is in the highest bits
    groups = data.reshape(-1, 3)
    count = groups.shape[0] * 8 // high
    below = _from_the_top(groups[:, :2], low).reshape(count)
    above = _from_the_top(groups[:, 2:], high).reshape(count)
    codes = (below | above << low)[: prod(shape)].reshape(shape)
    return pack(element.from_bits(codes), element)


def _from_the_top(data: Tensor, bits: int) -> Tensor:
    """Bytes [n, k] -> their fields [n, k, 8 / bits], the highest bits first."""
    shifts = torch.arange(8 - bits, -1, -bits, dtype=torch.uint8)
    return (data.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)
