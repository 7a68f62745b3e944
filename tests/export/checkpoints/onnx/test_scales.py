# SPDX-License-Identifier: BSD-3-Clause
"""Scales that nodes make of what is stored."""

import numpy as np
import pytest
from onnx import helper

from blockscale.export.checkpoints.onnx.scales import ScaleParts, scale_of
from blockscale.export.checkpoints.onnx.tensors import read_model
from tests.export.checkpoints.onnx.files import floats, random_bytes, save, scales, tensor

E8M0 = tensor("b", "float8e8m0", (4,), random_bytes(4))
E4M3 = tensor("c", "float8e4m3fn", (4,), random_bytes(4))
OUTER = floats("o", scales(()))
EXPAND = helper.make_node("Expand", ["o", "n"], ["q"])
CAST = helper.make_node("Cast", ["b"], ["p"], to=1)


@pytest.mark.parametrize(
    ("nodes", "tensors", "found"),
    [
        ([], [floats("s", scales((4,), "float16"))], ("fp16", ["s"])),
        ([], [tensor("s", "float8e8m0", (4,), random_bytes(4))], ("e8m0/given", ["s"])),
        ([helper.make_node("Cast", ["b"], ["s"], to=1)], [E8M0], ("e8m0/given", ["b"])),
        ([CAST, helper.make_node("Mul", ["p", "o"], ["s"])], [E8M0, OUTER],
         ("e8m0/given", ["b", "o"])),
        ([helper.make_node("DequantizeLinear", ["c", "o"], ["s"])], [E4M3, OUTER],
         ("e4m3", ["c", "o"])),
        ([helper.make_node("Cast", ["c"], ["p"], to=1), helper.make_node("Mul", ["o", "p"], ["s"])],
         [E4M3, OUTER], ("e4m3", ["c", "o"])),
        ([helper.make_node("Cast", ["c"], ["p"], to=1), EXPAND,
          helper.make_node("Mul", ["q", "p"], ["s"])],
         [E4M3, OUTER, floats("n", np.array([4]))], ("e4m3", ["c", "o"])),
        ([], [tensor("s", "int8", (4,), random_bytes(4))], "its scale s is int8"),
        ([], [], "its scale s is not a tensor of the file"),
        ([helper.make_node("Exp", ["o"], ["s"])], [OUTER], "its scale s is computed by Exp"),
        ([helper.make_node("Mul", ["x", "y2"], ["s"])], [], (
        "a product (Mul) of tensors that are not stored"
)),
        ([helper.make_node("DequantizeLinear", ["c", "o"], ["s"])],
         [E4M3, floats("o", scales((4,)))], "has scales of its own, float32 [4]"),
        ([helper.make_node("DequantizeLinear", ["x", "o"], ["s"])], [OUTER], "are not float8"),
    ],
)  # fmt: skip
def test_scale_of(nodes, tensors, found, tmp_path):
    last = helper.make_node("Identity", ["s"], ["y"])
    model = read_model(save(tmp_path / "m.onnx", [*nodes, last], tensors))
    parts = scale_of("s", model, model.graph.makers)
    if isinstance(found, str):
        assert isinstance(parts, str) and found in parts
    else:
        assert isinstance(parts, ScaleParts)
        assert (parts.spelling, [each.name for each in parts.tensors]) == found
