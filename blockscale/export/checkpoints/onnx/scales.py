# SPDX-License-Identifier: BSD-3-Clause
"""Scales of an ONNX file's weights: initializers, or what a few nodes make of them.

Known are what torch.onnx, ModelOpt, ONNX's opsets 23 and 24 and our own exporter write: a tensor as
it is, a Cast of float8e8m0, fp16 or bf16, and float8e4m3fn under another scale by
DequantizeLinear or Mul.
"""

from typing import NamedTuple

import torch

from blockscale.export.auditing.onnx_file import Node
from blockscale.export.checkpoints.onnx.tensors import Model, Tensor

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
    made = makers.get(name)
    if made is None:
        return f"its scale {name} is not a tensor of the file"
    given = [model.tensors.get(each) for each in made.inputs]
    if made.op == "Cast" and given[0] is not None and given[0].type in (_FLOATS | _BYTES):
        return ScaleParts((_FLOATS | _BYTES)[given[0].type], given[0])
    if made.op == "DequantizeLinear" and len(given) > 1:
        return _two_levels(name, given[0], given[1])
    if made.op == "Mul" and len(given) == 2:
        return _product(name, made, model, makers)
    return f"its scale {name} is computed by {made.op}"


def _product(name: str, made: Node, model: Model, makers: dict[str, Node]) -> ScaleParts | str:
    """A byte's power of two times a constant, or float8 times an outer scale."""
    for first, second in (made.inputs, made.inputs[::-1]):
        other, cast = _spread(second, model, makers), makers.get(first)
        if other is None or cast is None or cast.op != "Cast":
            continue
        inner = model.tensors.get(cast.inputs[0])
        if inner is not None and inner.type in _BYTES and other.elements == 1:
            return ScaleParts(_BYTES[inner.type], inner, factor=other)
        return _two_levels(name, inner, other)
    return f"its scale {name} is a product (Mul) of tensors that are not stored"


def _spread(name: str, model: Model, makers: dict[str, Node]) -> Tensor | None:
    """A stored tensor; also one number that nodes only repeat or give another shape."""
    made = makers.get(name)
    if made is None or made.op not in ("Expand", "Reshape"):
        return model.tensors.get(name)
    found = model.tensors.get(made.inputs[0])
    return found if found is not None and found.elements == 1 else None


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
