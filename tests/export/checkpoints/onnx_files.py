# SPDX-License-Identifier: BSD-3-Clause
"""ONNX files with a weight in codes, and what onnxruntime makes of them."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnx import TensorProto, helper, numpy_helper

TYPES = {
    "float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16,
    "uint8": TensorProto.UINT8, "int8": TensorProto.INT8, "uint16": TensorProto.UINT16,
    "int16": TensorProto.INT16, "int32": TensorProto.INT32, "uint4": TensorProto.UINT4,
    "int4": TensorProto.INT4, "uint2": TensorProto.UINT2, "int2": TensorProto.INT2,
    "float8e4m3fn": TensorProto.FLOAT8E4M3FN, "float8e5m2": TensorProto.FLOAT8E5M2,
    "float4e2m1": TensorProto.FLOAT4E2M1, "float8e8m0": TensorProto.FLOAT8E8M0,
    "float8e4m3fnuz": TensorProto.FLOAT8E4M3FNUZ,
}  # fmt: skip


def tensor(name: str, kind: str, shape: tuple[int, ...], raw: bytes) -> TensorProto:
    return TensorProto(name=name, data_type=TYPES[kind], dims=shape, raw_data=raw)


def floats(name: str, array: np.ndarray) -> TensorProto:
    return numpy_helper.from_array(array, name)


def random_bytes(count: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8).tobytes()


def scales(shape: tuple[int, ...], dtype: str = "float32", seed: int = 1) -> np.ndarray:
    """Any scales: both signs, large, small, subnormal and 0."""
    generator = np.random.default_rng(seed)
    low, high = (-20, 10) if dtype == "float16" else (-140, 100)
    values = generator.standard_normal(shape) * 2.0 ** generator.integers(low, high, shape)
    flat = values.reshape(-1)
    flat[: 1 + flat.size // 8] = 0.0
    flat[-1:] = 1.5
    return values.astype(dtype)


def save(
    path: Path, nodes: list, tensors: list, inputs: tuple = (), output: int = 1, opset: int = 21
) -> Path:
    """A file with these nodes, of which the last gives `y`, of ONNX's type `output`."""
    graph = helper.make_graph(
        nodes, "g", list(inputs), [helper.make_tensor_value_info("y", output, None)], tensors
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10 if opset < 23 else 11)
    onnx.save(model, path)
    return path


def run(path: Path, feeds: dict | None = None) -> torch.Tensor:
    """`y` as onnxruntime computes it, without optimization."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(["y"], feeds or {})[0])


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Equal in every bit, NaN for NaN."""
    assert found.dtype == expected.dtype and found.shape == expected.shape
    bits = {2: torch.int16, 4: torch.int32}[found.element_size()]
    both = found.isnan() & expected.isnan()
    return bool(((found.contiguous().view(bits) == expected.contiguous().view(bits)) | both).all())
