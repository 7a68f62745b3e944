# SPDX-License-Identifier: BSD-3-Clause
"""ONNX files as checkpoints: weights in codes become QTensors with their codes as stored."""

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor as Values
from torch import nn

from blockscale.core.format import Format
from blockscale.core.pack import pack, packed_dtype, packed_size
from blockscale.core.parse import parse
from blockscale.core.untrusted import quote
from blockscale.export.checkpoints.checkpoint import Checkpoint, Stored
from blockscale.export.checkpoints.onnx_in_model import in_model
from blockscale.export.checkpoints.onnx_tensors import Model, Tensor, read_model
from blockscale.export.checkpoints.onnx_weights import DTYPES, OnnxWeight, ScaleParts, find_weights
from blockscale.export.checkpoints.places import Files, check_apart, fields, packed_rows
from blockscale.ops.tensor import QTensor, from_parts

_PLAIN = {
    "float32": torch.float32, "uint8": torch.uint8, "int8": torch.int8, "uint16": torch.uint16,
    "int16": torch.int16, "int32": torch.int32, "int64": torch.int64, "bool": torch.bool,
    "float16": torch.float16, "float64": torch.float64, "uint32": torch.uint32,
    "uint64": torch.uint64, "bfloat16": torch.bfloat16, "float8e4m3fn": torch.float8_e4m3fn,
    "float8e5m2": torch.float8_e5m2, "float8e8m0": torch.float8_e8m0fnu,
    "float8e4m3fnuz": torch.float8_e4m3fnuz, "float8e5m2fnuz": torch.float8_e5m2fnuz,
}  # fmt: skip
_FLOATS = ("float32", "float16", "bfloat16")
_SUFFIX = ".onnx"
_ROUNDING = ("QuantizeLinear", "DynamicQuantizeLinear")
_BY_ROW = ("MatMulNBits", "GatherBlockQuantized")  # whose zero points are packed row by row


def recognize(path: Path) -> str | None:
    """What tells that it is one: its name, and ONNX's version and graph in it."""
    if path.is_dir():
        every = sorted(path.glob(f"*{_SUFFIX}"))
        if len(every) != 1 or any(path.glob("*.safetensors")):
            return None
        return f"it holds {every[0].name}"
    if path.is_file() and path.suffix == _SUFFIX:
        return f"its name ends in {_SUFFIX}"
    return None


class ONNX(Checkpoint):
    """An ONNX file; names are those of its initializers, ours without their `.codes`.

    metadata: versions, opsets, and what the file says about itself. Shapes are those in the file:
    a weight of MatMul is [inputs, outputs], one of MatMulNBits [outputs, inputs].
    """

    producer = "ONNX"

    def __init__(self, path: Path, evidence: str):
        super().__init__(path, evidence)
        file = next(path.glob(f"*{_SUFFIX}")) if path.is_dir() else path
        model = read_model(file)
        self._files = Files()
        self.metadata: dict[str, Any] = dict(model.properties)
        self.evidence += f": IR version {model.properties['ir_version']}, opset {model.opset}"
        self.warnings += too_new(model)
        rounding = [node for node in model.nodes if node.op in _ROUNDING]
        self._rounded = sum(node.inputs[0] not in model.tensors for node in rounding)
        self._of_inputs = {name for node in rounding for name in node.inputs[1:]}
        check_apart({name: each.place for name, each in model.tensors.items()})
        result = find_weights(model)
        parts = {each.name for weight in result.values() for each in weight.tensors[1:]}
        self._weights: dict[str, OnnxWeight] = {}
        self._tensors = {name: each for name, each in model.tensors.items() if name not in parts}
        for stored, weight in result.items():
            ours = stored.removesuffix(".codes")
            name = stored if ours in model.tensors else ours
            self._weights[name], self.stored[name] = weight, self._of(name, weight)
        for name, tensor in self._tensors.items():
            if name not in result:
                self.stored[name] = _plain(name, tensor)

    def _of(self, name: str, weight: OnnxWeight) -> Stored:
        nbytes = sum(each.place.nbytes for each in weight.tensors)
        kind, fmt, unread = f"{weight.codes.type} {weight.op}", None, weight.unread
        if not unread:
            try:
                fmt = str(parse(self._spelling(weight)))
                parse(fmt).stored(weight.shape)
            except ValueError as error:
                fmt, unread = None, f"{error}"
        return Stored(name, kind, weight.shape, nbytes, fmt, unread)

    def _spelling(self, weight: OnnxWeight) -> str:
        """The format of a weight; of signed numbers it has zero points if one of them is not 0."""
        if weight.parts:
            return weight.element
        assert weight.scale is not None
        element, scale, option = weight.element, weight.scale, ""
        spelling = scale.spelling
        integer = element.startswith(("int", "uint"))
        if integer and spelling == "e8m0/given":  # there it would mean another power of two
            bits = int(element.lstrip("uint"))
            f = bits - (2 if element.startswith("int") else 1)
            if scale.factor is None or self._number(scale.factor) != 2.0**-f:
                raise ValueError("float8e8m0 is the scale of its integers as they are")
        elif scale.factor is not None:
            raise ValueError("its scale is multiplied by a constant")
        if integer and weight.middle:
            element, option = element.lstrip("u"), ":full"
        elif integer and weight.zero is not None and self._any(weight.zero, element):
            # onnxruntime: fl(fl(q·s) - fl(z·s)) where zero points are floats
            option = ":asym" if weight.zero.type not in _FLOATS else ":offset(fp32)"
        elif element.startswith("int"):
            option = ":full"
        elif not integer and weight.zero is not None and self._any(weight.zero, ""):
            raise ValueError("its floats have zero points that are not 0")
        return f"{element}:{weight.block}:{spelling}{option}"

    def _any(self, zero: Tensor, element: str) -> bool:
        """Whether zero points are worth to be read: those of unsigned numbers always are."""
        return element.startswith("u") or bool(self._files.read(zero.place).any())

    def _number(self, tensor: Tensor) -> float:
        if tensor.type != "float32" or tensor.elements != 1:
            return 0.0
        return float(self._files.read(tensor.place).view(torch.float32)[0])

    def _read(self, stored: Stored) -> QTensor | Values:
        weight = self._weights.get(stored.name)
        if weight is None:
            tensor = self._tensors[stored.name]
            data = self._files.read(tensor.place)
            return data.view(_PLAIN[tensor.type]).reshape(tensor.shape)
        assert stored.format is not None
        fmt = parse(stored.format)
        if weight.parts:
            return self._packed(weight, fmt)
        assert weight.scale is not None
        shapes = fmt.stored(weight.shape)
        parts = self._scales(weight.scale)
        if fmt.offset is not None and weight.zero is not None:
            zero = self._files.read(weight.zero.place).view(DTYPES[weight.zero.type])
            scale = parts["scale"].to(torch.float32).flatten()
            parts["offset"] = -(zero.to(torch.float32) * scale)
        elif fmt.asym:
            assert weight.zero is not None
            parts["zero_point"] = self._zeros(weight, weight.zero, fmt, shapes["scale"][1])
        for part, (dtype, shape) in shapes.items():
            parts[part] = parts[part].to(dtype).reshape(shape)
        parts["codes"] = self._codes(weight, fmt)
        return from_parts(fmt, (weight.shape or (1,))[-1], parts)

    def _packed(self, weight: OnnxWeight, fmt: Format) -> QTensor:
        """Codes that our exporter packed, rows of whole groups of them, and what is beside them."""
        size, dtype = weight.shape[-1], packed_dtype(fmt.element)
        rows = self._files.read(weight.codes.place).view(dtype).reshape(weight.codes.shape)
        row = (*weight.shape[:-1], packed_size(fmt.element, size))
        parts = {"codes": rows[:, : row[-1]].reshape(row)}
        for part, (kind, shape) in fmt.stored(weight.shape).items():
            tensor = weight.parts[part]
            data = self._files.read(tensor.place)
            wide = tensor.bits != 8 * kind.itemsize  # zero points as numbers
            values = data.view(torch.float32).to(kind) if wide else data.view(kind)
            parts[part] = values.reshape(shape)
        return from_parts(fmt, size, parts)

    def _scales(self, scale: ScaleParts) -> dict[str, Values]:
        parts = {"scale": self._files.read(scale.inner.place).view(DTYPES[scale.inner.type])}
        if scale.outer is not None:
            parts["outer"] = self._files.read(scale.outer.place).view(torch.float32)
        return parts

    def _codes(self, weight: OnnxWeight, fmt: Format) -> Values:
        data, element = self._files.read(weight.codes.place), fmt.element
        if weight.middle:  # from 0 -> around 0, in two's complement: the highest bit turned
            data ^= sum(weight.middle << at for at in range(0, 8, element.bits))
        if not weight.padded:
            return packed_rows(data, element, weight.shape)
        rows, size = weight.shape
        data = data.reshape(rows, -1)
        if size * element.bits % 8:
            apart = fields(data, element.bits, data.numel() * 8 // element.bits)
            return pack(element.from_bits(apart.reshape(rows, -1)[:, :size]), element)
        rest = data[:, : size * element.bits // 8].contiguous()
        return rest.view(torch.int8) if element.name == "int8" else rest

    def _zeros(
        self, weight: OnnxWeight, zero: Tensor, fmt: Format, shape: tuple[int, ...]
    ) -> Values:
        """Zero points [scale's shape]: as numbers, or packed row by row."""
        data = self._files.read(zero.place)
        element, bits = fmt.element, fmt.element.bits
        if weight.op in _BY_ROW and zero.type == "uint8":
            rows = data.reshape(-1, -(-shape[-1] * bits // 8))
            each = fields(rows, bits, rows.numel() * 8 // bits).reshape(rows.shape[0], -1)
            return each[:, : shape[-1]]
        if bits >= 8:
            return data.view(_PLAIN[zero.type])
        return element.from_bits(fields(data, bits, torch.Size(shape).numel()))

    def in_model(self, model: nn.Module) -> Checkpoint:
        """The tensors as layers hold them: what products read [k, n] is [n, k]."""
        if self._rounded:
            warnings.warn(
                f"blockscale: {self.path}: QuantizeLinear rounds {self._rounded} input(s) of "
                "layers, whose formats are not read from ONNX files: layers get floats",
                stacklevel=6,
            )
        turns = {name for name, weight in self._weights.items() if weight.inputs_first}
        constants = {name for name, tensor in self._tensors.items() if tensor.constant}
        constants |= self._of_inputs
        return in_model(self, model, turns, constants)

    def file_of(self, name: str) -> Path:
        weight = self._weights.get(name)
        return (self._tensors[name] if weight is None else weight.codes).place.file

    def close(self) -> None:
        self._files.close()


def _plain(name: str, tensor: Tensor) -> Stored:
    unread = ""
    if tensor.type not in _PLAIN:
        unread = f"{quote(tensor.type)} is not a dtype of torch, and no node says what it means"
    nbytes, dtype = tensor.place.nbytes, _PLAIN.get(tensor.type)
    return Stored(name, tensor.type, tensor.shape, nbytes, None, unread, dtype=dtype)


# What an ONNX file uses, against the version that it says it is of.


# {type of tensors: the opset with which it came} (onnx, docs/Versioning.md and Changelog.md)
_SINCE = {
    "float8e4m3fn": 19, "float8e5m2": 19, "float8e4m3fnuz": 19, "float8e5m2fnuz": 19, "int4": 21,
    "uint4": 21, "float4e2m1": 23, "float8e8m0": 24, "int2": 25, "uint2": 25,
}  # fmt: skip
_BLOCKS = 21  # DequantizeLinear's block_size


def too_new(model: Model) -> list[str]:
    """What standard operators read that their opset does not have yet: the file errs about it."""
    table: dict[str, int] = {}
    for node in model.nodes:
        if node.domain not in ("", "ai.onnx"):
            continue
        if node.op == "DequantizeLinear" and node.attributes.get("block_size"):
            table["blocks of DequantizeLinear"] = _BLOCKS
        for name in node.inputs:
            if (tensor := model.tensors.get(name)) is not None and tensor.type in _SINCE:
                table[tensor.type] = _SINCE[tensor.type]
    opset = model.opset
    return [
        f"its opset is {opset}, but it has {what}, which need opset {since}"
        for what, since in table.items()
        if since > opset
    ]


reader = ONNX
