# SPDX-License-Identifier: BSD-3-Clause
"""onnxruntime's CPU kernels, in graphs of one node and in a whole encoder."""

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from blockscale.bench.requests import Call, Encoder, Layer, Peer

_GROUP = 32
_CONTRIB = "com.microsoft"


def unavailable() -> str | None:
    """Why it cannot be measured here."""
    missing = [n for n in ("onnxruntime", "onnx") if importlib.util.find_spec(n) is None]
    return f"{missing[0]} is not installed" if missing else None


def linear(layer: Layer) -> Iterator[Peer]:
    """fp32, int8 weight with dynamic int8 input, int4 weight in groups with int8 input inside."""
    yield Peer("onnxruntime fp32", lambda: _fp32(layer))
    yield Peer("onnxruntime DynamicQuantizeMatMul int8", lambda: _int8(layer))
    if layer.k % _GROUP == 0:
        note = "accuracy_level 4: multiplies in int8"
        yield Peer(f"onnxruntime MatMulNBits int4 group {_GROUP}", lambda: _int4(layer), note)


def model(encoder: Encoder) -> Iterator[Peer]:
    """fp32, and int8 by onnxruntime's own quantize_dynamic."""
    yield Peer("onnxruntime fp32", lambda: _encoder(encoder.model, dynamic=False))
    yield Peer("onnxruntime quantize_dynamic int8", lambda: _encoder(encoder.model, dynamic=True))


class OnnxSession(nn.Module):
    """An encoder's file in onnxruntime, called as the encoder is."""

    def __init__(self, path: Path):
        super().__init__()
        onnxruntime = importlib.import_module("onnxruntime")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )

    def forward(self, **tokens: Tensor) -> Any:
        """input_ids and what goes with them -> what the encoder gives first."""
        [states] = self.session.run(
            ["last_hidden_state"], {name: each.numpy() for name, each in tokens.items()}
        )
        return SimpleNamespace(last_hidden_state=torch.from_numpy(states))


def _encoder(encoder: nn.Module, *, dynamic: bool) -> OnnxSession:
    """The float encoder as torch.onnx writes it, and as onnxruntime quantizes that."""
    names = ("input_ids", "token_type_ids", "attention_mask")
    ids = torch.arange(1000, 1032).reshape(2, 16)
    arguments = {name: ids if name == "input_ids" else torch.ones_like(ids) for name in names}
    free = {0: torch.export.Dim("rows"), 1: torch.export.Dim("tokens", min=2, max=512)}
    with TemporaryDirectory() as folder:
        path, small = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        program = torch.export.export(
            encoder, (), arguments, dynamic_shapes=dict.fromkeys(names, free)
        )
        outputs = ["last_hidden_state", "pooler_output"]
        result = torch.onnx.export(program, dynamo=True, output_names=outputs, verbose=False)
        assert result is not None
        result.save(path)
        if not dynamic:
            return OnnxSession(path)
        quantization = importlib.import_module("onnxruntime.quantization")
        quantization.quantize_dynamic(path, small, weight_type=quantization.QuantType.QInt8)
        return OnnxSession(small)


def _fp32(layer: Layer) -> Any:
    return _session(layer, "MatMul", {"w": layer.weight.t().contiguous().numpy()})


def _int8(layer: Layer) -> Any:
    scale = layer.weight.abs().amax(1) / 127
    codes = (layer.weight / scale[:, None]).round().to(torch.int8)
    arrays = {"w": codes.t().contiguous().numpy(), "s": scale.numpy()}
    return _session(layer, "DynamicQuantizeMatMul", arrays, domain=_CONTRIB)


def _int4(layer: Layer) -> Any:
    groups = layer.weight.reshape(layer.n, -1, _GROUP)
    scale = groups.abs().amax(-1) / 7
    codes = ((groups / scale[..., None]).round() + 8).to(torch.uint8)
    arrays = {
        "w": (codes[..., ::2] | codes[..., 1::2] << 4).numpy(),
        "s": scale.flatten().numpy(),
    }
    options = {"K": layer.k, "N": layer.n, "bits": 4, "block_size": _GROUP, "accuracy_level": 4}
    return _session(layer, "MatMulNBits", arrays, domain=_CONTRIB, **options)


def _session(
    layer: Layer, kind: str, arrays: Mapping[str, np.ndarray[Any, Any]], **options: Any
) -> Callable[[Tensor], Call]:
    """x [m, k] -> a function that runs `kind` on x and the arrays."""
    onnxruntime = importlib.import_module("onnxruntime")  # may be missing, for mypy too
    onnx = importlib.import_module("onnx")
    helper, numpy_helper = onnx.helper, onnx.numpy_helper

    def value(name: str, size: int) -> Any:
        return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["m", size])

    node = helper.make_node(kind, ["x", *arrays], ["y"], **options)
    members = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph([node], "one", [value("x", layer.k)], [value("y", layer.n)], members)
    versions = [helper.make_opsetid("", 20), helper.make_opsetid(_CONTRIB, 1)]
    model = helper.make_model(graph, opset_imports=versions)
    model.ir_version = 9
    session_options = onnxruntime.SessionOptions()
    session_options.intra_op_num_threads = torch.get_num_threads()
    session_options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), session_options, providers=["CPUExecutionProvider"]
    )

    def bind(x: Tensor) -> Call:
        feed = {"x": x.numpy()}
        return lambda: session.run(None, feed)

    return bind
