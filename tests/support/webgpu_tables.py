# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with
tests/kernels/webgpu/wgsl/test_code.py: `LEVELS`, `OTHERS`.
"""

LEVELS = [
    "e2m1:group1:(e4m3:group1:fp32)", "int4:group1:(e4m3:group1:fp16)",
    "int8:group1:(e5m2:group1:fp32)", "e4m3:group1:(uint6:group1:bf16)",
    "int8:group1:(nf4:group1:fp32)", "e2m1:group1:(e4m3:group1:fp32)/inv",
    "int4:group1:(e2m1:group1:fp32)", "int4:group1:(int5:group1:fp16)/inv",
    "int4:group1:(log8:group1:fp32)",
]  # fmt: skip


EIGHTHS = ",".join(str((37 * k % 200 - 90) / 8) for k in range(200))  # in no order


OTHERS = [
    "ternary:group1:fp32", "binary:group1:fp32", "binary:group1:bf16", "ternary:group1:e8m0/floor",
    "binary:group1:e8m0/floor", "nf4:group1:fp32", "fp4:group1:fp16", "iq4_nl:group1:fp32",
    "nf4:group1:e8m0/floor", f"book({EIGHTHS}):group1:fp32", "log8f3:group1:fp32",
    "book(0,0.5,1,2,-0,-0.5,-1,-2):group1:fp32", "book(0.25,-3,1e-05,7):group1:fp32",
    "book(-0,3,0,-1,1):group1:fp32", "book(-1,1):group1:bf16", "book(1e-30,-1e-30):group1:fp32",
    "apot4:group1:fp32", "book(0,1):group1:fp32", "uapot4:group1:bf16", "log4f1:group1:fp32:recip",
    "book(1e-38,1e-44,-1e38):group1:fp32",
]  # fmt: skip
