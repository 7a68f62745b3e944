# SPDX-License-Identifier: BSD-3-Clause
"""Half precision becomes float32 in a file: types, tensors, casts, inner graphs."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from blockscale.core.parse import parse
from blockscale.export.to_onnx import pieces_widened, widened
from blockscale.export.to_onnx.integer import TensorInput
from blockscale.export.to_onnx.take import Activation, MarkedRows, MarkedStep, MarkedWeight
from tests.export.to_onnx.running import session
from tests.support.onnx_weight import stored


def model(kind):
    """y = (x + w) * c if both are positive, else x, in half precision."""
    import ml_dtypes

    dtype = ml_dtypes.bfloat16 if kind == TensorProto.BFLOAT16 else np.float16
    value = helper.make_tensor_value_info
    inner = [
        helper.make_node(
            "Constant", [], ["c"], value=numpy_helper.from_array(np.array([0.1], dtype))
        ),
        helper.make_node("Cast", ["sum"], ["again"], to=kind),
        helper.make_node("Mul", ["again", "c"], ["scaled"]),
    ]
    then = helper.make_graph(inner, "then", [], [value("scaled", kind, None)])
    otherwise = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["same"])], "else", [], [value("same", kind, None)]
    )
    nodes = [
        helper.make_node("Add", ["x", "w"], ["sum"]),
        helper.make_node("If", ["yes"], ["y"], then_branch=then, else_branch=otherwise),
    ]
    initializers = [
        numpy_helper.from_array(np.array([0.7, 1.3], dtype), "w"),
        numpy_helper.from_array(np.array(True), "yes"),
    ]
    graph = helper.make_graph(
        nodes, "g", [value("x", kind, [2])], [value("y", kind, [2])], initializers
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return made, dtype


@pytest.mark.parametrize("kind", [TensorProto.BFLOAT16, TensorProto.FLOAT16])
def test_it_computes_in_float32_with_the_same_values(kind):
    made, dtype = model(kind)
    [name] = widened(made)
    assert name == ("bfloat16" if kind == TensorProto.BFLOAT16 else "float16")
    onnx.checker.check_model(made, full_check=True)
    x = np.array([1.0, 2.0], np.float32)
    [y] = session(made).run(None, {"x": x})
    w, c = (np.array(each, dtype).astype(np.float32) for each in ([0.7, 1.3], [0.1]))
    assert y.dtype == np.float32 and np.array_equal(y, (x + w) * c)
    assert widened(made) == ()


def test_pieces():
    coded, _ = stored("int4:group8:bf16")
    half, whole = torch.bfloat16, torch.float32
    fmt = parse("int8:token:fp32")
    given = [
        MarkedWeight("w", coded, (), half), MarkedRows("t", coded, torch.float16),
        Activation("a", fmt, None, (2, 3), half, half),
        MarkedStep(
            "s", "add",
            {"a": TensorInput("", half, ()), "b": TensorInput("", torch.int32, ()), "fmt": ""},
        ),
    ]  # fmt: skip
    weight, rows, activation, step = pieces_widened(given)
    assert weight.dtype == rows.dtype == activation.source_dtype == activation.dtype == whole
    assert [step.args[name].kind for name in ("a", "b")] == [whole, torch.int32]
    assert weight.stored.scale.dtype == torch.bfloat16  # what is stored stays
