# SPDX-License-Identifier: BSD-3-Clause
"""OpenVINO's IR as a checkpoint: weights in codes become QTensors with their codes as stored."""

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blockscale.core.elements import read_element
from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.untrusted import FileError
from blockscale.export.checkpoints.checkpoint import Checkpoint, Stored
from blockscale.export.checkpoints.openvino_graph import (
    DTYPES,
    Constant,
    IRGraph,
    IRLayer,
    constant,
    packed_codes,
    read_graph,
)
from blockscale.export.checkpoints.places import Files, check_apart, fields
from blockscale.ops.tensor import QTensor, from_parts

# Which constants of an IR are weights in codes: the chains of layers that make floats of them.
#
#     Const -> Convert -> [Subtract zero points] -> Multiply scales -> [Reshape] -> [Convert]
#
# and for a codebook Gather(table, Const -> Convert) in the place of Convert. A Convert to f16
# rounds; products are float32 (seen in OpenVINO 2026.4 on a CPU with the precision hint f32).

Shape = tuple[int, ...]
_CODES = (
    "u1", "u2", "u3", "u4", "u6", "u8", "i4", "i8", "nf4", "f4e2m1", "f8e4m3", "f8e5m2",
)  # fmt: skip
_WIDER = ("f16", "f32", "bf16")


@dataclass(frozen=True)
class IRWeight:
    """A weight in codes.

    shape: of the values; block: of ours, and `scale_shape` what scales have in it
    scale, outer: of the steps; zero: zero points; table: of a codebook; halves: whether steps
    are converted to f16; beside: shapes and the like that say how
    """

    codes: Constant
    shape: Shape
    scale: Constant
    outer: Constant | None = None
    zero: Constant | None = None
    table: Constant | None = None
    block: str = ""
    halves: bool = False
    unread: str = ""
    beside: tuple[Constant, ...] = ()

    @property
    def constants(self) -> list[Constant]:
        """All that is stored for it."""
        every = (self.codes, self.scale, self.outer, self.zero, self.table)
        return [each for each in every if each is not None]


def find_weights(graph: IRGraph, constants: dict[str, Constant]) -> dict[str, IRWeight]:
    """{id of the codes: the weight}."""
    data = {}
    for each in constants.values():
        if each.type in _CODES and (weight := _Chain(graph, constants).follow(each)) is not None:
            data[each.id] = weight
    scales = {part.id for weight in data.values() for part in weight.constants[1:]}
    return {key: weight for key, weight in data.items() if key not in scales}


class _Chain:
    """Follows what is made of one constant."""

    def __init__(self, graph: IRGraph, constants: dict[str, Constant]):
        self._graph, self._constants = graph, constants
        self._zero: Constant | None = None
        self._table: Constant | None = None
        self._beside: list[Constant] = []

    def follow(self, codes: Constant) -> IRWeight | None:
        """The weight of these codes; None where no such chain begins with them."""
        at = self._only(codes.id, "Convert")
        if at is None:
            return None
        gather = self._only(at.id, "Gather")
        if gather is not None and gather.inputs[1:2] == [at.id]:
            self._table = self._source(gather.inputs[0])[0]
            self._aside(gather, 2)
            at = gather
        if (subtract := self._only(at.id, "Subtract")) is not None:
            self._zero = self._other(subtract, at.id)[0]
            if self._zero is None or subtract.inputs[0] != at.id:
                return None
            at = subtract
        multiply = self._only(at.id, "Multiply")
        if multiply is None or (at.type == "Gather" and self._table is None):
            return None
        scale, outer, halves = self._scale(multiply, at.id)
        return None if scale is None else self._weight(codes, multiply, scale, outer, halves)

    def _weight(
        self,
        codes: Constant,
        multiply: IRLayer,
        scale: Constant,
        outer: Constant | None,
        halves: bool,
    ) -> IRWeight:
        shape, reshape = codes.shape, self._only(multiply.id, "Reshape")
        if reshape is not None and -1 not in reshape.shape:
            shape = reshape.shape
            self._aside(reshape, 1)
        block = block_of(codes.shape, scale.shape, shape)
        unread = ""
        if block is None:
            text = f"scales {list(scale.shape)} of codes {list(codes.shape)}, values {list(shape)}"
            unread, block = f"{text}: no block here matches", ""
        elif self._zero is not None and self._zero.elements not in (1, scale.elements):
            unread = f"it has {self._zero.elements} zero points for {scale.elements} scales"
        return IRWeight(
            codes, shape, scale, outer, self._zero, self._table, block, halves, unread,
            tuple(self._beside),
        )  # fmt: skip

    def _aside(self, layer: IRLayer, place: int) -> None:
        """Note a constant that says how, if nothing else reads it."""
        for of in layer.inputs[place : place + 1]:
            if of in self._constants and len(self._graph.readers[of]) == 1:
                self._beside.append(self._constants[of])

    def _only(self, of: str, kind: str) -> IRLayer | None:
        """The layer of a kind that reads a layer; None if none does, or several."""
        results = [each for each in self._graph.readers.get(of, []) if each.type == kind]
        return results[0] if len(results) == 1 else None

    def _other(self, layer: IRLayer, text: str) -> tuple[Constant | None, bool]:
        others = [each for each in layer.inputs if each != text]
        return self._source(others[0]) if len(others) == 1 else (None, False)

    def _source(self, of: str) -> tuple[Constant | None, bool]:
        """The constant that a layer is or converts, and whether to f16."""
        layer, half = self._graph.layers[of], False
        if layer.type == "Convert" and layer.inputs:
            half = layer.data.get("destination_type") == "f16"
            layer = self._graph.layers[layer.inputs[0]]
        return self._constants.get(layer.id), half

    def _scale(self, multiply: IRLayer, text: str) -> tuple[Constant | None, Constant | None, bool]:
        """The scales of a product: a constant, or bytes times one number, converted."""
        result, half = self._other(multiply, text)
        if result is not None:
            return result, None, half and result.type == "f8e8m0"
        others = [each for each in multiply.inputs if each != text]
        layer = self._graph.layers[others[0]] if len(others) == 1 else multiply
        if layer.type == "Convert" and layer.inputs:
            half = layer.data.get("destination_type") == "f16"
            layer = self._graph.layers[layer.inputs[0]]
        if layer.type != "Multiply" or layer is multiply or len(layer.inputs) != 2:
            return None, None, False
        pair = [self._source(each)[0] for each in layer.inputs]
        if pair[0] is None or pair[1] is None:
            return None, None, False
        inner, outer = sorted((each for each in pair if each), key=lambda c: -c.elements)
        return (inner, outer, half) if outer.elements == 1 else (None, None, False)


def block_of(codes: Shape, scale: Shape, values: Shape) -> str | None:
    """The block of values whose codes and scales are multiplied in these shapes, or None."""
    if len(scale) > len(codes):
        return None
    scale = (1,) * (len(codes) - len(scale)) + scale
    if any(s not in (1, n) for s, n in zip(scale, codes, strict=True)):
        return None
    block = [1 if s == n and n > 1 else n for s, n in zip(scale, codes, strict=True)]
    if values != codes:
        block_or_none = _merged(codes, values, block)
        if block_or_none is None:
            return None
        block = block_or_none
    return _block_spelling(values, block)


def _merged(codes: Shape, values: Shape, block: list[int]) -> list[int] | None:
    """Sizes of blocks where two neighbouring dimensions became one."""
    for at in range(len(codes) - 1):
        if (*codes[:at], codes[at] * codes[at + 1], *codes[at + 2 :]) != values:
            continue
        outer, inner = block[at], block[at + 1]
        if inner in (1, codes[at + 1]) and (outer == 1 or inner == codes[at + 1]):
            return [*block[:at], outer * inner, *block[at + 2 :]]
    return None


def _block_spelling(values: Shape, block: list[int]) -> str:
    whole = [b == n for b, n in zip(block, values, strict=True)]
    if all(whole):
        return "tensor"
    rest = [i for i, each in enumerate(whole) if not each or (values[i] == 1 and block[i] == 1)]
    if len(rest) == 1 and block[rest[0]] == 1:
        return f"channel{rest[0]}"
    apart = [i for i, b in enumerate(block) if b != 1]
    if len(apart) == 1:
        place = "" if apart[0] == len(values) - 1 else f"@{apart[0]}"
        return f"group{block[apart[0]]}{place}"
    return "block" + "x".join(str(b) for b in block)


# The files.

_ELEMENTS = {"f4e2m1": "e2m1", "f8e4m3": "e4m3", "f8e5m2": "e5m2"}
_SCALES = {"f32": "fp32", "f16": "fp16", "bf16": "bf16", "f8e8m0": "e8m0/given"}
_HALF = range(103, 143)  # bytes of e8m0 that are numbers of f16, subnormal ones included
_BEGINNING = 4096  # bytes of an .xml in which `<net` stands


def recognize(path: Path) -> str | None:
    """What tells that it is one: an .xml that begins a net, alone or in a directory."""
    if path.is_dir():
        every = sorted(each for each in path.glob("*.xml") if each.with_suffix(".bin").is_file())
        if len(every) != 1 or any(path.glob("*.safetensors")):
            return None  # tokenizers have their own; then a file has to be named
        path = every[0]
    if not path.is_file() or path.suffix != ".xml":
        return None
    with path.open("rb") as file:
        return f"{path.name} is an IR: it begins <net" if b"<net" in file.read(_BEGINNING) else None


class OpenVINO(Checkpoint):
    """An IR's .xml with its .bin beside it; names are those of its constants.

    Shapes are those of the values, after Reshape. metadata: the net's name and version
    """

    producer = "OpenVINO"

    def __init__(self, path: Path, evidence: str):
        super().__init__(path, evidence)
        if path.is_dir():
            path = next(x for x in sorted(path.glob("*.xml")) if x.with_suffix(".bin").is_file())
        graph, self._files = read_graph(path), Files()
        self.metadata: dict[str, Any] = {"name": graph.name, "version": graph.version}
        if graph.bodies:
            self.metadata["bodies"] = f"{graph.bodies} inside layers, which are not read"
        data = path.with_suffix(".bin")
        if not data.is_file():
            raise FileError(f"{data} is missing, which holds the weights of {path.name}")
        size = data.stat().st_size
        layers = [each for each in graph.layers.values() if each.type == "Const"]
        try:
            constants = {each.id: constant(each, data, size) for each in layers}
        except ValueError as error:
            raise FileError(f"{path}: {error}: download or copy both files again") from None
        names = _names(list(constants.values()))
        check_apart({names[each.id]: each.place for each in constants.values()})
        result = find_weights(graph, constants)
        beside = {
            part.id for each in result.values() for part in (*each.constants[1:], *each.beside)
        }
        self._weights = {names[key]: weight for key, weight in result.items()}
        self._plain: dict[str, Constant] = {}
        for each in constants.values():
            if each.id not in result and each.id not in beside:
                self._plain[names[each.id]] = each
                self.stored[names[each.id]] = _stored(names[each.id], each)
        for name, weight in self._weights.items():
            self.stored[name] = self._of(name, weight)

    def _of(self, name: str, weight: IRWeight) -> Stored:
        nbytes, unread = sum(each.place.nbytes for each in weight.constants), weight.unread
        fmt = None
        if not unread:
            try:
                fmt = str(parse(self._spelling(weight)))
                parse(fmt).stored(weight.shape)
            except ValueError as error:
                fmt, unread = None, str(error)
        return Stored(name, weight.codes.type, weight.shape, nbytes, fmt, unread)

    def _spelling(self, weight: IRWeight) -> str:
        kind, scale = weight.codes.type, _SCALES.get(weight.scale.type)
        if weight.outer is not None:  # its product is rounded to f16: that is the step
            scale = "fp16" if weight.halves else "fp32"
        if scale is None:
            raise ValueError(f"its scales have the unsupported type {weight.scale.type}")
        if weight.table is not None:
            return f"{self._book(weight.table)}:{weight.block}:{scale}"
        if kind == "nf4":  # a Convert to f16 rounds its values
            values = read_element("nf4").decode(torch.arange(16, dtype=torch.uint8))
            return f"{_book(values.to(torch.float16))}:{weight.block}:{scale}"
        if kind in _ELEMENTS:
            return f"{_ELEMENTS[kind]}:{weight.block}:{scale}"
        if scale == "e8m0/given":
            raise ValueError("f8e8m0 is the scale of its integers as they are")
        element = kind.replace("u", "uint").replace("i", "int", 1) if kind[0] == "i" else ""
        element = element or f"uint{kind[1:]}"
        option = ":asym" if weight.zero is not None else ":full" * (kind[0] == "i")
        return f"{element}:{weight.block}:{scale}{option}"

    def _book(self, table: Constant) -> str:
        if table.type not in DTYPES or table.elements > 256:
            raise ValueError(
                f"its table is {table.type} {list(table.shape)}, which no codebook here has"
            )
        values = self._files.read(table.place).view(DTYPES[table.type])
        return _book(values.to(torch.float32))

    def _read(self, stored: Stored) -> QTensor | Tensor:
        weight = self._weights.get(stored.name)
        if weight is None:
            each = self._plain[stored.name]
            return self._files.read(each.place).view(DTYPES[each.type]).reshape(each.shape)
        assert stored.format is not None
        fmt, codes = parse(stored.format), weight.codes
        shape = fmt.stored(weight.shape)["scale"][1]
        parts = {"scale": self._scale(weight, fmt).reshape(shape)}
        if fmt.asym and weight.zero is not None:
            parts["zero_point"] = self._zeros(weight.zero, shape)
        data = self._files.read(codes.place)
        parts["codes"] = packed_codes(data, codes.type, fmt.element, weight.shape)
        return from_parts(fmt, (weight.shape or (1,))[-1], parts)

    def _scale(self, weight: IRWeight, fmt: Format) -> Tensor:
        stored = self._files.read(weight.scale.place)
        if weight.outer is not None:
            inner = stored.view(DTYPES[weight.scale.type]).to(torch.float32)
            outer = self._files.read(weight.outer.place).view(DTYPES[weight.outer.type])
            return (inner * outer.to(torch.float32).reshape(())).to(fmt.scale.dtype)
        if fmt.scale.dtype != torch.uint8:
            return stored.view(fmt.scale.dtype)
        if weight.halves and bool(((stored < _HALF[0]) | (stored > _HALF[-1])).any()):
            name = weight.codes.name
            raise FileError(
                f"{name} has a power-of-two scale that f16 does not hold, and the file "
                "converts it to f16: its values are not those of the scale")  # fmt: skip
        return stored

    def _zeros(self, zero: Constant, shape: tuple[int, ...]) -> Tensor:
        """Whole zero points [scale's shape]."""
        data = self._files.read(zero.place)
        if zero.type in ("u2", "u4"):
            result = fields(data, int(zero.type[1]), zero.elements).to(torch.float32)
        elif zero.type in DTYPES:
            result = data.view(DTYPES[zero.type]).to(torch.float32)
        else:
            raise FileError(f"{zero.name}: its zero points have the unsupported type {zero.type}")
        whole = result.to(torch.int32)
        if not torch.equal(whole.to(torch.float32), result):
            raise FileError(f"{zero.name}: its zero points are not integers")
        return whole.expand(prod(shape)).reshape(shape).contiguous()

    def file_of(self, name: str) -> Path:
        weight = self._weights.get(name)
        return (self._plain[name] if weight is None else weight.codes).place.file

    def close(self) -> None:
        self._files.close()


def _book(values: Tensor) -> str:
    """A table as formats spell it: the shortest decimals that float32 reads as its values."""
    numbers = values.to(torch.float32).numpy()
    return "book(" + ",".join(np.format_float_positional(n, trim="-") for n in numbers) + ")"


def _names(constants: list[Constant]) -> dict[str, str]:
    """{id: name}, with the id behind names that several have."""
    counts: dict[str, int] = {}
    for each in constants:
        counts[each.name] = counts.get(each.name, 0) + 1
    return {c.id: c.name if counts[c.name] == 1 else f"{c.name}#{c.id}" for c in constants}


def _stored(name: str, each: Constant) -> Stored:
    unread = "" if each.type in DTYPES else f"{each.type} is not a dtype of torch"
    nbytes, dtype = each.place.nbytes, DTYPES.get(each.type)
    return Stored(name, each.type, each.shape, nbytes, None, unread, dtype=dtype)


reader = OpenVINO
