# SPDX-License-Identifier: BSD-3-Clause
"""Float ONNX models of a few nodes, and what onnxruntime gives for them."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]
from onnx import helper, numpy_helper

Array = Any


def weights(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def model(
    path: Path,
    nodes: list[Any],
    tensors: dict[str, Array],
    inputs: dict[str, list[Any]],
    opset: int = 17,
) -> Path:
    """A file with these nodes, stored tensors and float inputs (int64, called ids…); output y."""
    kinds = {n: 7 if n.startswith("ids") else 1 for n in inputs}
    given = [helper.make_tensor_value_info(n, kinds[n], shape) for n, shape in inputs.items()]
    stored = [numpy_helper.from_array(array, name) for name, array in tensors.items()]
    output = onnx.ValueInfoProto(name="y")
    output.type.tensor_type.elem_type = 1
    graph = helper.make_graph(nodes, "test", given, [output], stored)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    made.ir_version = 8
    onnx.save(made, str(path))
    return path


def outputs(path: Path, feed: dict[str, Array], optimized: bool = False) -> Array:
    """The first output of a file; as written, or as onnxruntime optimizes it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(str(path), options, providers=providers)
    found: Array = session.run(None, feed)[0]
    return found


def several(path: Path, opset: int = 17) -> Path:
    """A table, a product, a convolution, a transposed one and Gemm, one after another.

    ids [rows, 6] -> Gather [.., 8] -> MatMul [.., 16] -> [.., 16, 6] -> Conv -> ConvTranspose -> y
    """
    node = helper.make_node
    nodes = [
        node("Gather", ["table.weight", "ids"], ["rows"]),
        node("MatMul", ["rows", "onnx::MatMul_7"], ["wide"], name="/block/fc/MatMul"),
        node("Transpose", ["wide"], ["turned"], perm=[0, 2, 1]),
        node("Conv", ["turned", "conv.weight", "conv.bias"], ["c"], group=2, pads=[1, 1]),
        node("Relu", ["c"], ["r"]),
        node("ConvTranspose", ["r", "up.weight"], ["u"], group=2, strides=[2]),
        node("ReduceMean", ["u"], ["m"], axes=[2], keepdims=0),
        node("Gemm", ["m", "head.weight", "head.bias"], ["y"], transB=1),
    ]
    tensors = {
        "table.weight": weights(20, 8),
        "onnx::MatMul_7": weights(8, 16, seed=1),
        "conv.weight": weights(12, 8, 3, seed=2),
        "conv.bias": weights(12, seed=3),
        "up.weight": weights(12, 4, 2, seed=4),
        "head.weight": weights(5, 8, seed=5),
        "head.bias": weights(5, seed=6),
    }
    return model(path, nodes, tensors, {"ids": ["batch", 6]}, opset)
