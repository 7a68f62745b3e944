# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with
tests/kernels/cpu/test_primitives_memory.py: `FORMATS`.
"""

FORMATS = (
    "int4:group16:fp32:asym",
    "e4m3:tile3x32:e8m0/floor",
    "e2m1:group16:e4m3",
    "int12:channel0:fp16:stochastic",
    "binary:token:fp32",
    "uint3:channel1:bf16:asym",
)
