# SPDX-License-Identifier: BSD-3-Clause
"""A quantized model as an ONNX file, run by onnxruntime (docs/export.md).

python examples/export.py
"""

import onnxruntime
import torch
from torch import nn

import blockscale as bs

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).eval()
batches = [torch.randn(32, 64) for _ in range(8)]
rows = torch.export.Dim("rows")
program = torch.export.export(model, (batches[0],), dynamic_shapes=({0: rows},))
for weight, inputs in (
    ("int8_channel", "uint8:tensor:fp32:asym"),
    ("mxfp6", "mxfp8"),
    ("nvfp4", None),
):
    prepared = bs.graph.prepare(program, bs.Recipe(weight, input=inputs))
    bs.calibrate(prepared, batches, progress=False)
    bs.export.onnx(bs.graph.convert(prepared), "model.onnx", overwrite=True)
    session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
    y = torch.from_numpy(session.run(None, {"input": batches[0].numpy()})[0])
    print(weight, "cosine", nn.functional.cosine_similarity(y, model(batches[0])).mean().item())
