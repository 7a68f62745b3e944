# SPDX-License-Identifier: BSD-3-Clause
"""Small ONNX models made of a scope's nodes, checked by onnx and run by onnxruntime."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import helper, numpy_helper
from torch import Tensor

import blockscale as bs
from blockscale.export.to_onnx import write
from blockscale.export.to_onnx.scope import File, Scope

Build = Callable[[Scope, list[str]], str]


def session(model: Any, optimized: bool = False) -> Any:
    """An onnxruntime session of a ModelProto or a path, on the CPU with one thread."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    source = model if isinstance(model, str) else model.SerializeToString()
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def made(build: Build, *inputs: Tensor) -> Any:
    """The ModelProto of what `build` writes, for inputs of these dtypes and any sizes."""
    file = File()
    names = [f"x{i}" for i in range(len(inputs))]
    file.reserve([*names, "y"])
    scope = Scope(file, "")
    result = build(scope, names)
    scope.op("Identity", result, results=["y"])
    kinds = [helper.np_dtype_to_tensor_dtype(x.numpy().dtype) for x in inputs]
    values = [
        helper.make_tensor_value_info(name, kind, [None] * x.ndim)
        for name, kind, x in zip(names, kinds, inputs, strict=True)
    ]
    output = onnx.ValueInfoProto(name="y")
    graph = helper.make_graph(scope.nodes, "test", values, [output], list(file.tensors.values()))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    write.stamp(model, file.needs.opset)
    return onnx.shape_inference.infer_shapes(model)


def run(build: Build, *inputs: Tensor, optimized: bool = False) -> Tensor:
    """What onnxruntime makes of inputs with the nodes that `build` writes."""
    model = made(build, *inputs)
    onnx.checker.check_model(model, full_check=True)
    feed = {f"x{i}": x.numpy() for i, x in enumerate(inputs)}
    return torch.from_numpy(np.array(session(model, optimized).run(None, feed)[0]))


def same(found: Tensor, expected: Tensor) -> bool:
    """Equal numbers, NaN where NaN is expected; 0 and -0 are one number."""
    return found.shape == expected.shape and bool(
        ((found == expected) | (found.isnan() & expected.isnan())).all()
    )


def exported(graph: Any, path: Any, *arguments: Any, **options: Any) -> Any:
    """A file of `graph` at `path`, and a function that runs it as written and, with
    `optimized=True`, as onnxruntime optimizes it; it takes the model's inputs by their order."""
    bs.export.onnx(graph, path, *arguments, overwrite=True, **options)
    onnx.checker.check_model(str(path), full_check=True)
    opened: dict[bool, Any] = {}

    def call(*inputs: Tensor, optimized: bool = False) -> Tensor:
        if optimized not in opened:
            opened[optimized] = session(str(path), optimized)
        found = opened[optimized]
        names = [each.name for each in found.get_inputs()]
        feed = {name: x.numpy() for name, x in zip(names, inputs, strict=True)}
        return torch.from_numpy(found.run(None, feed)[0])

    return call


def initializers(path: Any) -> dict[str, Any]:
    """{name: TensorProto} of a file."""
    return {tensor.name: tensor for tensor in onnx.load(str(path)).graph.initializer}


def kinds(path: Any) -> set[str]:
    """The operators of a file's graph, which are ONNX's own: it has no functions."""
    model = onnx.load(str(path))
    assert not model.functions and {each.domain for each in model.opset_import} == {""}
    return {node.op_type for node in model.graph.node}


array = numpy_helper.to_array

EDGES = torch.tensor(
    [0.0, -0.0, 1e-45, -1e-40, 2.0**-127, 2.0**-126, 0.5, -0.5, 1.5, 2.5, -2.5, 0.1, -0.3, 0.7,
     3.4e38, -3.4e38, 448.0, 464.0, -465.0, 6.0, 5.0, -5.0, 127.4, -127.6, 128.0, 7.5, -7.5, 1.0]
)  # fmt: skip
