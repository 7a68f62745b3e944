# SPDX-License-Identifier: BSD-3-Clause
"""Which tensors of an ONNX file are weights in codes, by what reads them, and their scales.

Operators and attributes: ONNX 1.23 (DequantizeLinear 25) and onnxruntime 1.31, ContribOperators.md.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import gcd, prod
from typing import NamedTuple

import torch

from blockscale.core.pack import packed_dtype, packed_size
from blockscale.core.parse import parse
from blockscale.export.auditing.onnx_file import Node
from blockscale.export.checkpoints.onnx_tensors import Model, Tensor

# Scales: initializers, or what a few nodes make of them. Known are what torch.onnx, ModelOpt,
# ONNX's opsets 23 and 24 and our own exporter write: a tensor as it is, a Cast of float8e8m0, fp16
# or bf16, and float8e4m3fn under another scale by DequantizeLinear or Mul.

_FLOATS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
_BYTES = {"float8e8m0": "e8m0/given"}
_INNER = {"float8e4m3fn": "e4m3", "float8e5m2": "e5m2"}
DTYPES = {
    "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16,
    "float8e8m0": torch.uint8, "float8e4m3fn": torch.uint8, "float8e5m2": torch.uint8,
}  # fmt: skip


class ScaleParts(NamedTuple):
    """How a scale is stored.

    spelling: of it in our formats; inner: the tensor of a scale for each block; outer: of those,
    where there are two levels; factor: a constant by which all are multiplied
    """

    spelling: str
    inner: Tensor
    outer: Tensor | None = None
    factor: Tensor | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """All that is stored for it."""
        return [each for each in (self.inner, self.outer, self.factor) if each is not None]


def scale_of(name: str, model: Model, makers: dict[str, Node]) -> ScaleParts | str:
    """How the scale of this name is stored, or why that is not known."""
    if (tensor := model.tensors.get(name)) is not None:
        spelling = (_FLOATS | _BYTES).get(tensor.type)
        if spelling is None:
            return f"its scale {name} is {tensor.type}"
        return ScaleParts(spelling, tensor)
    value = makers.get(name)
    if value is None:
        return f"its scale {name} is not a tensor of the file"
    members = [model.tensors.get(each) for each in value.inputs]
    if value.op == "Cast" and members[0] is not None and members[0].type in (_FLOATS | _BYTES):
        return ScaleParts((_FLOATS | _BYTES)[members[0].type], members[0])
    if value.op == "DequantizeLinear" and len(members) > 1:
        return _two_levels(name, members[0], members[1])
    if value.op == "Mul" and len(members) == 2:
        return _product(name, value, model, makers)
    return f"its scale {name} is computed by {value.op}"


def _product(name: str, node: Node, model: Model, makers: dict[str, Node]) -> ScaleParts | str:
    """A byte's power of two times a constant, or float8 times an outer scale."""
    for first, second in (node.inputs, node.inputs[::-1]):
        other, cast = _stored_value(second, model, makers), makers.get(first)
        if other is None or cast is None or cast.op != "Cast":
            continue
        inner = model.tensors.get(cast.inputs[0])
        if inner is not None and inner.type in _BYTES and other.elements == 1:
            return ScaleParts(_BYTES[inner.type], inner, factor=other)
        return _two_levels(name, inner, other)
    return f"its scale {name} is a product (Mul) of tensors that are not stored"


def _stored_value(name: str, model: Model, makers: dict[str, Node]) -> Tensor | None:
    """A stored tensor; also one number that nodes only repeat or give another shape."""
    value = makers.get(name)
    if value is None or value.op not in ("Expand", "Reshape"):
        return model.tensors.get(name)
    setting = model.tensors.get(value.inputs[0])
    return setting if setting is not None and setting.elements == 1 else None


def _two_levels(name: str, inner: Tensor | None, outer: Tensor | None) -> ScaleParts | str:
    if inner is None or outer is None or inner.type not in _INNER:
        return (
            f"its scale {name} is computed from tensors that are not float8 with a scale of "
            "their own"
        )
    if outer.elements != 1 or outer.type != "float32":
        shape = list(outer.shape)
        return (
            f"its scale {name} has scales of its own, {outer.type} {shape}, expected a single one"
        )
    return ScaleParts(_INNER[inner.type], inner, outer)


# Operators

ELEMENTS = {
    "int2": "int2", "uint2": "uint2", "int4": "int4", "uint4": "uint4", "int8": "int8",
    "uint8": "uint8", "int16": "int16", "uint16": "uint16", "float8e4m3fn": "e4m3",
    "float8e5m2": "e5m2", "float4e2m1": "e2m1", "float6e2m3": "e2m3", "float6e3m2": "e3m2",
}  # fmt: skip


@dataclass(frozen=True)
class OnnxWeight:
    """A weight in codes.

    op: the operator that decodes it; element: of ours, of packed codes the whole format
    shape: of the values; block: of ours
    scale, zero: how scales and zero points are stored; unread: why it cannot be read, or empty
    middle: the code of 0 where no zero points are stored; padded: whether rows are whole blocks
    inputs_first: whether a product reads it as [inputs, outputs]
    parts: what stands beside codes that our exporter packed, by its names in our formats
    """

    codes: Tensor
    op: str
    element: str
    shape: tuple[int, ...]
    block: str = ""
    scale: ScaleParts | None = None
    zero: Tensor | None = None
    middle: int = 0
    padded: bool = False
    unread: str = ""
    inputs_first: bool = field(default=False, compare=False)
    parts: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def tensors(self) -> list[Tensor]:
        """All that is stored for it."""
        beside = [] if self.scale is None else self.scale.tensors
        beside += [] if self.zero is None else [self.zero]
        return [self.codes, *beside, *self.parts.values()]


class _Inputs(NamedTuple):
    """Where an operator has a weight's codes, scales and zero points, and the axis of channels."""

    codes: int
    scale: int
    zero: int
    axis: int


_LINEAR = {  # onnxruntime's and ONNX's operators that compute with codes
    "QLinearMatMul": _Inputs(3, 4, 5, -1), "QLinearConv": _Inputs(3, 4, 5, 0),
    "QGemm": _Inputs(3, 4, 5, 1), "MatMulIntegerToFloat": _Inputs(1, 3, 5, -1),
    "DynamicQuantizeMatMul": _Inputs(1, 2, 3, -1),
}  # fmt: skip


def find_weights(model: Model) -> dict[str, OnnxWeight]:
    """{name of the codes: the weight}. What several operators decode otherwise cannot be read."""
    weights = find_packed(model)
    makers, readers = model.graph.makers, model.graph.readers
    for node in model.nodes:
        take = _TAKES.get(node.op)
        weight = take(node, model, makers) if take is not None else None
        if weight is None:
            continue
        name = weight.codes.name
        weight = replace(weight, inputs_first=_inputs_first(node, readers))
        if weights.setdefault(name, weight) != weight:
            reason = "operators of the file decode it in different ways"
            weights[name] = OnnxWeight(weight.codes, node.op, weight.element, (), unread=reason)
    return weights


def _inputs_first(node: Node, readers: Mapping[str, list[Node]]) -> bool:
    """Whether a product reads what a node decodes, or the node itself its codes, [k, n]."""
    if node.op in _LINEAR:
        return node.op != "QLinearConv" and not node.attributes.get("transB")
    name = node.outputs[0] if node.outputs else ""
    return any(
        each.op in ("MatMul", "Gemm")
        and each.inputs[1:2] == [name]
        and not each.attributes.get("transB")
        for each in readers.get(name, [])
    )


# Packed codes as our exporter writes them where ONNX has no type: bytes, whose description is the
# format and the shape ("e2m1:group32:e8m0/floor [48, 64]"), and beside them `.scale` and so on.

_CODES = ".codes"
_SHAPE = re.compile(r"(\S+) \[([0-9]{1,18}(?:, [0-9]{1,18}){0,7})\]")


def find_packed(model: Model) -> dict[str, OnnxWeight]:
    """{name of the codes: the weight} of those that our exporter packed."""
    weights = {}
    for name, tensor in model.tensors.items():
        match = _SHAPE.fullmatch(tensor.about) if name.endswith(_CODES) else None
        if match is not None and tensor.type in ("uint8", "int8", "int16", "uint16"):
            shape = tuple(int(each) for each in match[2].split(", "))
            weights[name] = _packed(model, tensor, match[1], shape)
    return weights


def _packed(model: Model, codes: Tensor, spelling: str, shape: tuple[int, ...]) -> OnnxWeight:
    weight = OnnxWeight(codes, "packed by blockscale", "", shape)
    try:
        fmt = parse(spelling)
        kinds = fmt.stored(shape)
    except ValueError as error:
        return _unread(weight, str(error))
    row = packed_size(fmt.element, shape[-1])
    group = 1 if fmt.bits in (8, 16) else fmt.bits // gcd(8, fmt.bits)
    expected = (prod(shape[:-1]), row + -row % group)
    if codes.shape != expected or codes.bits != 8 * packed_dtype(fmt.element).itemsize:
        kind = f"{codes.type} {list(codes.shape)}"
        return _unread(weight, f"its codes are {kind}, expected {list(expected)}")
    parts: dict[str, Tensor] = {}
    for part, (dtype, dims) in kinds.items():
        name = f"{codes.name.removesuffix(_CODES)}.{part}"
        tensor = model.tensors.get(name)
        if tensor is None:
            return _unread(weight, f"its {part} is not stored, but numbers made of it")
        wide = tensor.type == "float32" and part == "zero_point"  # beside a table, as numbers
        if tensor.elements != prod(dims) or (tensor.bits != 8 * dtype.itemsize and not wide):
            kind = f"{tensor.type} {list(tensor.shape)}"
            return _unread(weight, f"its {part} is {kind}, expected {dtype} {list(dims)}")
        parts[part] = tensor
    return replace(weight, element=fmt.spelling, parts=parts)


def _stored_input(node: Node, model: Model, place: int) -> Tensor | None:
    """A stored tensor that a node reads."""
    return model.tensors.get(node.inputs[place]) if len(node.inputs) > place else None


def _there(node: Node, place: int) -> bool:
    return len(node.inputs) > place and bool(node.inputs[place])


def _dequantize_linear(node: Node, model: Model, makers: dict[str, Node]) -> OnnxWeight | None:
    inputs = _Inputs(0, 1, 2, node.attributes.get("axis", 1))
    return _by_axis(node, model, makers, inputs, node.attributes.get("block_size", 0))


def _linear(node: Node, model: Model, makers: dict[str, Node]) -> OnnxWeight | None:
    inputs = _LINEAR[node.op]
    if node.op == "QGemm" and node.attributes.get("transB"):
        inputs = inputs._replace(axis=0)
    return _by_axis(node, model, makers, inputs, 0)


def _by_axis(
    node: Node, model: Model, makers: dict[str, Node], inputs: _Inputs, block_size: int
) -> OnnxWeight | None:
    codes = _stored_input(node, model, inputs.codes)
    if codes is None or len(node.inputs) <= inputs.scale:
        return None
    element = ELEMENTS.get(codes.type)
    if element is None and codes.type == "int32":
        return None  # a bias: its codes stay a tensor
    weight = OnnxWeight(codes, node.op, element or codes.type, codes.shape)
    if element is None:
        return _unread(weight, f"{codes.type} is an element type that no format here has")
    scale = scale_of(node.inputs[inputs.scale], model, makers)
    if isinstance(scale, str):
        return _unread(weight, scale)
    block = _block(codes.shape, scale.inner, inputs.axis, block_size)
    if block is None:
        shapes = f"{list(scale.inner.shape)} for codes {list(codes.shape)}"
        text = f"axis {inputs.axis} and block_size {block_size}"
        return _unread(weight, f"its scales are {shapes}, which do not match {text}")
    zero = _stored_input(node, model, inputs.zero)
    if zero is None and _there(node, inputs.zero):
        return _unread(weight, f"its zero points {node.inputs[inputs.zero]} are not stored")
    if zero is not None and (zero.type, zero.elements) != (codes.type, scale.inner.elements):
        kind = f"{zero.type} {list(zero.shape)}"
        return _unread(
            weight, f"its zero points are {kind}, expected one {codes.type} for each scale"
        )
    return OnnxWeight(codes, node.op, element, codes.shape, block, scale, zero)


def _block(shape: tuple[int, ...], scale: Tensor, axis: int, block_size: int) -> str | None:
    """The block of which such scales are; None where there is none."""
    rank = len(shape)
    if not block_size and scale.elements == 1 and len(scale.shape) < 2:
        return "tensor"
    if not -rank <= axis < rank:
        return None
    axis %= rank
    if not block_size:
        return f"channel{axis}" if scale.shape == (shape[axis],) else None
    count = -(-shape[axis] // block_size) if block_size > 0 else -1
    if scale.shape != (*shape[:axis], count, *shape[axis + 1 :]):
        return None
    return f"group{block_size}" + ("" if axis == rank - 1 else f"@{axis}")


def _unread(weight: OnnxWeight, reason: str) -> OnnxWeight:
    return OnnxWeight(weight.codes, weight.op, weight.element, weight.shape, unread=reason)


def _matmul_nbits(node: Node, model: Model, _: dict[str, Node]) -> OnnxWeight | None:
    """B [N, K/g, g·b/8] of uint8, rows padded to whole blocks; scales [N, K/g]."""
    codes = _stored_input(node, model, 1)
    if codes is None:
        return None
    info = node.attributes
    n, k, size, bits = info.get("N", 0), info.get("K", 0), info.get("block_size", 0), _bits(info)
    weight = OnnxWeight(codes, node.op, f"uint{bits}", (n, k))
    scale = _stored_input(node, model, 2)
    if bits not in (2, 4, 8) or size < 1 or size * bits % 8 or n < 0 or k < 0 or scale is None:
        return _unread(weight, f"its attributes are N={n}, K={k}, bits={bits}, block_size={size}")
    blocks = -(-k // size)
    if codes.type != "uint8" or codes.elements != n * blocks * size * bits // 8:
        kind = f"{codes.type} {list(codes.shape)}"
        return _unread(
            weight, f"its codes are {kind}, expected {n} rows of {blocks} blocks of {size}"
        )
    if _there(node, 4):
        return _unread(weight, "its columns are in another order (g_idx), which no format here has")
    if scale.elements != n * blocks:
        return _unread(weight, f"it has {scale.elements} scales, expected {n} x {blocks}")
    zero = _stored_input(node, model, 3)
    if zero is None and _there(node, 3):
        return _unread(weight, f"its zero points {node.inputs[3]} are not stored")
    parts = scale_of(node.inputs[2], model, {})
    if isinstance(parts, str):
        return _unread(weight, parts)
    return _nbits(weight, parts, zero, size)


def _nbits(weight: OnnxWeight, scale: ScaleParts, zero: Tensor | None, size: int) -> OnnxWeight:
    """With zero points packed row by row, floats, or none, where the middle code is 0."""
    (n, k), bits = weight.shape, int(weight.element.removeprefix("uint"))
    blocks = -(-k // size)
    if zero is not None:
        packed = n * -(-blocks * bits // 8)
        right = {"uint8": packed, scale.inner.type: n * blocks}.get(zero.type)
        if zero.elements != right or (zero.type != "uint8" and bits == 8):  # refused there, too
            kind = f"{zero.type} {list(zero.shape)}"
            return _unread(weight, f"its zero points are {kind}, expected {n} x {blocks}")
    middle = 0 if zero is not None else 1 << (bits - 1)
    shape, block = weight.shape, f"group{size}"
    return OnnxWeight(
        weight.codes, weight.op, weight.element, shape, block, scale, zero, middle, padded=True
    )


def _bits(table: dict[str, int]) -> int:
    return table.get("bits", 4)


def _gather_block_quantized(node: Node, model: Model, _: dict[str, Node]) -> OnnxWeight | None:
    """A table of embeddings: int4, uint4, or uint8 that holds one 8-bit or two 4-bit codes."""
    codes = _stored_input(node, model, 0)
    if codes is None:
        return None
    info, rank = node.attributes, len(codes.shape)
    bits = _bits(info) if codes.type == "uint8" else codes.bits
    middle = 1 << (bits - 1) if codes.type == "uint8" else 0
    element = f"uint{bits}" if codes.type == "uint8" else ELEMENTS.get(codes.type, "")
    last = codes.shape[-1] * 8 // bits if rank and bits in (2, 4, 8) else 0
    shape = (*codes.shape[:-1], last) if codes.type == "uint8" else codes.shape
    weight = OnnxWeight(codes, node.op, element, shape)
    if element not in ("int4", "uint4", "uint8", "uint2"):
        return _unread(weight, f"its codes are {codes.type} of {bits} bits")
    axis, size = info.get("quantize_axis", 1), info.get("block_size", 128)
    scale = scale_of(node.inputs[2], model, {}) if _there(node, 2) else "it has no scales"
    if isinstance(scale, str):
        return _unread(weight, scale)
    block = _block(shape, scale.inner, axis, size)
    if block is None:
        shapes = f"{list(scale.inner.shape)} for codes {list(shape)}"
        return _unread(weight, f"its scales are {shapes}, expected blocks of {size} along {axis}")
    zero = _stored_input(node, model, 3)
    if zero is None and _there(node, 3):
        return _unread(weight, f"its zero points {node.inputs[3]} are not stored")
    if zero is not None and zero.elements * (8 // bits if zero.type == "uint8" else 1) < prod(
        scale.inner.shape
    ):
        return _unread(weight, f"its zero points are {zero.type} {list(zero.shape)}")
    middle = 0 if zero is not None else middle
    return OnnxWeight(codes, node.op, element, shape, block, scale, zero, middle)


_TAKES: dict[str, Callable[[Node, Model, dict[str, Node]], OnnxWeight | None]] = {
    "DequantizeLinear": _dequantize_linear, "MatMulNBits": _matmul_nbits,
    "GatherBlockQuantized": _gather_block_quantized, **dict.fromkeys(_LINEAR, _linear),
}  # fmt: skip
