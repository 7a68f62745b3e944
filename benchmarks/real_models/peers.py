# SPDX-License-Identifier: BSD-3-Clause
"""Others' code on the same model and batches: torchao and AutoRound for four-bit weights,
onnxruntime for static eight bits.

The first two choose integers of 4 bits in groups of 32 for the linear layers of the model's
blocks, and leave tables in float, as our preset w4a16 does. AutoRound takes rows of one length
without padding, so it sees the same sentences one after another. onnxruntime quantizes a network of
convolutions from input to output, weights by channel; what it gives is computed node by node,
unfused, since its fused products of bytes saturate on processors without VNNI.
"""

import copy
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

Batches = list[dict[str, Tensor]]
LENGTH = 64  # tokens of a row that AutoRound takes
STEPS = 200  # of AutoRound's descent for each block: its default


def torchao_rounded(model: nn.Module, _: Batches) -> nn.Module:
    """torchao's IntxWeightOnlyConfig as it is: rounding to nearest."""
    return _torchao(model, "affine")


def torchao_hqq(model: nn.Module, _: Batches) -> nn.Module:
    """torchao's scales by half-quadratic descent, which needs no data."""
    return _torchao(model, "hqq_scale_only")


def _torchao(model: nn.Module, scales: str) -> nn.Module:
    from torchao.quantization import IntxWeightOnlyConfig, quantize_  # type: ignore[import-untyped]
    from torchao.quantization.granularity import PerGroup  # type: ignore[import-untyped]

    made = copy.deepcopy(model)
    config = IntxWeightOnlyConfig(
        weight_dtype=torch.int4,  # type: ignore[attr-defined]
        granularity=PerGroup(32), scale_dtype=torch.float16,
        intx_choose_qparams_algorithm=scales,
    )  # fmt: skip
    head = made.get_output_embeddings() if hasattr(made, "get_output_embeddings") else None
    quantize_(made, config, lambda module, _: isinstance(module, nn.Linear) and module is not head)
    return made


def auto_round(
    model: nn.Module, batches: Batches, length: int = LENGTH, floats: Sequence[str] = ()
) -> nn.Module:
    """AutoRound with its defaults: symmetric, 200 steps a block.

    length: of the rows that it takes; floats: names of layers that it leaves as they are
    """
    from auto_round import AutoRound  # type: ignore[import-not-found]

    rows, device = _rows(batches, length), next(model.parameters()).device
    given: list[dict[str, Tensor]] = [
        {"input_ids": row[None], "attention_mask": torch.ones_like(row[None])} for row in rows
    ]
    made: Any = AutoRound(
        copy.deepcopy(model), tokenizer=_NoWords(), bits=4, group_size=32, sym=True, dataset=given,
        iters=STEPS, seqlen=length, nsamples=len(given), batch_size=8, device_map=str(device),
        amp=False, enable_torch_compile=False, layer_config={name: {"bits": 16} for name in floats},
    ).quantize()  # fmt: skip
    quantized: nn.Module = made[0] if isinstance(made, tuple) else made
    return quantized.to(device, torch.float32).eval()


class _NoWords:
    """In the place of a tokenizer, which AutoRound asks for and does not need for tokens."""


def _rows(batches: Batches, length: int) -> Tensor:
    """The batches' tokens without padding, one sentence after another: [rows, length]."""
    ids = torch.cat([b["input_ids"][b["attention_mask"].bool()] for b in batches])
    return ids[: len(ids) // length * length].view(-1, length)


PEERS: dict[str, Callable[[nn.Module, Batches], nn.Module]] = {
    "torchao": torchao_rounded,
    "torchao hqq": torchao_hqq,
    "AutoRound": auto_round,
}


class Session(nn.Module):
    """An ONNX file of one input and one output, run by onnxruntime node by node."""

    def __init__(self, path: Path):
        super().__init__()
        import onnxruntime as ort  # type: ignore[import-untyped]

        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 3
        self.session = ort.InferenceSession(path.read_bytes(), options)
        self.name = self.session.get_inputs()[0].name

    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(self.session.run(None, {self.name: x.numpy()})[0])


def onnxruntime_static(model: nn.Module, batches: Sequence[Tensor], method: str) -> nn.Module:
    """onnxruntime's quantize_static with weights by channel, after its own preparation of the file.

    method: of its calibration: MinMax, Entropy or Percentile
    """
    from onnxruntime.quantization import (  # type: ignore[import-untyped]
        CalibrationMethod,
        QuantType,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import (  # type: ignore[import-untyped]
        quant_pre_process,
    )

    with tempfile.TemporaryDirectory() as place:
        plain, ready, out = (Path(place) / f"{each}.onnx" for each in ("plain", "ready", "out"))
        rows = {0: torch.export.Dim.DYNAMIC}
        program = torch.onnx.export(
            model, (batches[0],), dynamo=True, dynamic_shapes=(rows,), verbose=False
        )
        program.save(plain)  # type: ignore[union-attr]
        quant_pre_process(str(plain), str(ready))
        name = Session(ready).name
        quantize_static(
            str(ready), str(out), _Calls([{name: batch.numpy()} for batch in batches]),
            per_channel=True, activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod[method],
        )  # fmt: skip
        return Session(out)


class _Calls:
    """What onnxruntime calibrates on, one call after another (its CalibrationDataReader)."""

    def __init__(self, calls: list[dict[str, Any]]):
        self.left = iter(calls)

    def get_next(self) -> dict[str, Any] | None:
        return next(self.left, None)


STATIC: dict[str, Callable[[nn.Module, list[Tensor]], nn.Module]] = {
    f"onnxruntime {method}": partial(onnxruntime_static, method=method)
    for method in ("MinMax", "Entropy", "Percentile")
}
