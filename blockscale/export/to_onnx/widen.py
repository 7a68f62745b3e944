# SPDX-License-Identifier: BSD-3-Clause
"""Models in bfloat16 or float16 as files that compute in float32, with the same weights' values.

No runtime on a CPU computes bfloat16 (onnxruntime 1.31 refuses such a file), and few float16. What
is stored for formats stays as it is: scales in bf16 and fp16, and roundings to them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from blockscale.export.to_onnx.integer import TensorInput
from blockscale.export.to_onnx.take import Activation, MarkedRows, MarkedStep, MarkedWeight, Piece

_HALVES = {10: "float16", 16: "bfloat16"}  # TensorProto.DataType
_FLOAT = 1
_TYPES = ("to", "dtype", "output_dtype")  # attributes that are types


def widened(model: Any) -> tuple[str, ...]:
    """Make a model (ModelProto) compute in float32, in place; returns the float types it had.

    model: as torch translates it, before the pieces of formats are put in
    """
    dtypes = _widen(model.graph)
    for function in model.functions:
        dtypes |= _widen_nodes(function.node)
    return tuple(sorted(dtypes))


def pieces_widened(pieces: Sequence[Piece]) -> list[Piece]:
    """The same for what marks stand for."""
    return [_piece(each) for each in pieces]


def _piece(piece: Piece) -> Piece:
    if isinstance(piece, Activation):
        return replace(piece, source_dtype=_wide(piece.source_dtype), dtype=_wide(piece.dtype))
    if isinstance(piece, MarkedStep):
        args = {
            name: each._replace(kind=_wide(each.kind)) if isinstance(each, TensorInput) else each
            for name, each in piece.args.items()
        }
        return replace(piece, args=args)
    assert isinstance(piece, MarkedWeight | MarkedRows)
    return replace(piece, dtype=_wide(piece.dtype))


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _widen(graph: Any) -> set[str]:
    dtypes = {name for each in graph.initializer if (name := _widen_tensor(each))}
    for value in (*graph.input, *graph.output, *graph.value_info):
        kind = value.type.tensor_type
        if kind.elem_type in _HALVES:
            dtypes.add(_HALVES[kind.elem_type])
            kind.elem_type = _FLOAT
    return dtypes | _widen_nodes(graph.node)


def _widen_nodes(nodes: Iterable[Any]) -> set[str]:
    dtypes: set[str] = set()
    for node in nodes:
        for attribute in node.attribute:
            if attribute.name in _TYPES and attribute.i in _HALVES:
                dtypes.add(_HALVES[attribute.i])
                attribute.i = _FLOAT
            tensors = [*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors]
            dtypes |= {name for each in tensors if (name := _widen_tensor(each))}
            inner = [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]
            dtypes |= {name for each in inner for name in _widen(each)}
    return dtypes


def _widen_tensor(tensor: Any) -> str:
    """The type that a tensor had, now in float32; empty where it had another."""
    from onnx import numpy_helper

    if tensor.data_type not in _HALVES:
        return ""
    had = _HALVES[tensor.data_type]
    values = numpy_helper.to_array(tensor).astype("float32")
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return had
