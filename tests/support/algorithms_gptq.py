# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with
tests/calibration/algorithms/test_gptq.py: `FORMATS`, `objective`.
"""

import numpy as np
from torch import Tensor

import blockscale as bs

FORMATS = [
    "int4:group8:fp32", "int4:tensor:fp32", "int3:channel0:fp16", "int4:channel1:bf16",
    "uint4:group8:fp32:asym", "mxfp4", "e2m1:group8:pow2/ceil", "int4:group8@0:fp32",
    "int4:group5@0:fp32:asym", "int4:tile4x8:fp32:full", "nvfp4", "int4:group7:fp32:half:recip",
    "e2m1:group8:(e4m3:group4@0:fp32)", "e2m1:group8:e4m3:recip", "uint4:group8:e4m3:asym",
    "int4:group8:(uint8:token:fp32)", "log4:group8:fp32", "ternary:group8:fp32",
    "binary:group8:fp32", "int4:group8:pow2/nearest:asym", "int4:group8:fp32:toward_zero",
]  # fmt: skip


def objective(q: bs.ops.tensor.QTensor, weight: Tensor, gram: Tensor) -> float:
    difference = (weight.double() - q.dequantize().double()).numpy()
    return float(np.trace(difference @ gram.double().numpy() @ difference.T))
