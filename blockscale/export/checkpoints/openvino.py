# SPDX-License-Identifier: BSD-3-Clause
"""OpenVINO's IR as a checkpoint: weights in codes become QTensors with their codes as stored."""

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
    constant,
    packed_codes,
    read_graph,
)
from blockscale.export.checkpoints.openvino_weights import IRWeight, find_weights
from blockscale.export.checkpoints.places import Files, check_apart, fields
from blockscale.ops.tensor import QTensor, from_parts

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
        found = find_weights(graph, constants)
        beside = {
            part.id for each in found.values() for part in (*each.constants[1:], *each.beside)
        }
        self._weights = {names[key]: weight for key, weight in found.items()}
        self._plain: dict[str, Constant] = {}
        for each in constants.values():
            if each.id not in found and each.id not in beside:
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
            found = fields(data, int(zero.type[1]), zero.elements).to(torch.float32)
        elif zero.type in DTYPES:
            found = data.view(DTYPES[zero.type]).to(torch.float32)
        else:
            raise FileError(f"{zero.name}: its zero points have the unsupported type {zero.type}")
        whole = found.to(torch.int32)
        if not torch.equal(whole.to(torch.float32), found):
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
    seen: dict[str, int] = {}
    for each in constants:
        seen[each.name] = seen.get(each.name, 0) + 1
    return {c.id: c.name if seen[c.name] == 1 else f"{c.name}#{c.id}" for c in constants}


def _stored(name: str, each: Constant) -> Stored:
    unread = "" if each.type in DTYPES else f"{each.type} is not a dtype of torch"
    nbytes, dtype = each.place.nbytes, DTYPES.get(each.type)
    return Stored(name, each.type, each.shape, nbytes, None, unread, dtype=dtype)


reader = OpenVINO
