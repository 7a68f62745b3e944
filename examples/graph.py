# SPDX-License-Identifier: BSD-3-Clause
"""A program, quantized: export, prepare, calibrate, convert, fuse, lower (docs/graph.md).

python examples/graph.py
"""

import torch
from torch import nn

import blockscale as bs

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.Softmax(-1)).eval()
batches = [torch.randn(32, 64) for _ in range(8)]
rows = torch.export.Dim("rows")
program = torch.export.export(model, (batches[0],), dynamic_shapes=({0: rows},))

rules = {"op:softmax": {"output": "uint8:tensor:fp32"}}
recipe = bs.Recipe(weight="int8_channel", input="uint8:tensor:fp32:asym", rules=rules)
prepared = bs.graph.prepare(program, recipe)
bs.calibrate(prepared, batches)
converted = bs.graph.convert(prepared)
fused = bs.graph.fuse(converted)
lowered = bs.graph.lower(fused, "cpu")
print(bs.graph.ledger(lowered))
x = batches[0]
print("cosine", nn.functional.cosine_similarity(lowered(x), model(x)).min().item())
