# SPDX-License-Identifier: BSD-3-Clause
"""What several files share with tests/calibration/algorithms/test_mse.py: `FORMATS`."""

FORMATS = [
    "int4:group8:fp32", "int4:tensor:fp32", "int3:channel0:fp16", "int4:channel1:bf16",
    "uint4:group8:fp32:asym", "int3:token:fp16:asym", "int8:group16:e8m0/floor", "mxfp4",
    "e2m1:group8:pow2/ceil", "int4:group8@0:fp32", "int4:tile4x8:fp32:full", "nvfp4",
    "e2m1:group8:(e4m3:group4@0:fp32)", "uint4:group8:e4m3:asym", "int4:group8:(uint8:token:fp32)",
    "log4:group8:fp32", "ternary:group8:fp32", "binary:group8:fp32", "int4:group8:fp32:half:recip",
    "int4:group8:pow2/nearest:asym", "int4:group8:fp32:toward_zero",
]  # fmt: skip
