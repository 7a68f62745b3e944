# SPDX-License-Identifier: BSD-3-Clause
"""An ONNX model with its weights as a format's codes stand for them; everything else in float."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import blockscale as bs

KINDS = ("Conv", "ConvTranspose", "MatMul", "Gemm")


def rounded(path: Path, fmt: str) -> tuple[bytes, int]:
    """The model's bytes with every constant weight of KINDS rounded, and how many those are.

    Blocks lie along the inputs of each output, as in our layers: of convolutions [out, in / groups
    · kernel], of products [in, out] along the first dimension.
    """
    import onnx
    from onnx import numpy_helper

    model: Any = onnx.load(path)
    held = {each.name: each for each in model.graph.initializer}
    for node in model.graph.node:
        for attribute in node.attribute if node.op_type == "Constant" else ():
            if attribute.name == "value":
                held[node.output[0]] = attribute.t
    done: set[str] = set()
    for node in model.graph.node:
        name = node.input[1] if node.op_type in KINDS else ""
        if name not in held or name in done or len(held[name].dims) < 2:
            continue
        value = torch.from_numpy(numpy_helper.to_array(held[name]).copy())
        new = _rounded(value, fmt, _outputs_first(node))
        held[name].CopyFrom(numpy_helper.from_array(new.numpy(), held[name].name))
        done.add(name)
    return model.SerializeToString(), len(done)


def _outputs_first(node: Any) -> bool:
    """Whether the weight's first dimension is of outputs."""
    settings = {a.name: a.i for a in node.attribute}
    return node.op_type == "Conv" or (node.op_type == "Gemm" and settings.get("transB", 0) == 1)


def _rounded(weight: Tensor, fmt: str, outputs_first: bool) -> Tensor:
    rows = weight if outputs_first else weight.transpose(0, 1)
    shape = rows.shape
    flat = rows.reshape(shape[0], -1)
    back = bs.quantize(flat.contiguous(), fmt).dequantize().to(weight.dtype).reshape(shape)
    return (back if outputs_first else back.transpose(0, 1)).contiguous()
