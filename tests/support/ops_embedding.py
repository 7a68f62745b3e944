# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with tests/ops/test_embedding.py: `EXTRA`."""

EXTRA = (
    "int8:channel1:fp32",
    "uint4:channel1:bf16:asym",
    "e4m3:group4@0:e8m0/floor",
    "int5:tile4x16:fp32",
    "e2m1:tile8x8:e4m3",
    "e2m1:group16:(e4m3:channel0:fp32)",
    "uint3:group8:(uint4:group2:fp32):asym",
    "e2m1:tile2x32:(uint8:tile3x1:fp32):recip",
    "int16:token:fp16",
)
