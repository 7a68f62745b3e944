# SPDX-License-Identifier: BSD-3-Clause
"""Formats with codebooks, offsets, zero points that are no integers: what kernels tell apart."""

EIGHTHS = ",".join(str((37 * k % 200 - 90) / 8) for k in range(200))  # in no order
CODEBOOKS = [
    "nf4:group64:fp32", "fp4:group64:fp16", "iq4_nl:group32:fp16",
    "book(-1,-0.5,0,0.5,1):token:fp32", f"book({EIGHTHS}):group64:fp32", "log8f3:channel0:fp32",
    "nf4:group32:e8m0/floor", "nf4:group32:pow2/ceil", "nf4:group16:e4m3",
    "fp4:tile4x16:bf16:recip",
    "book(0,0.5,1,2,-0,-0.5,-1,-2):group32:fp32", "book(0.25,-3,1e-05,7):group32:fp32",
    "book(-0,3,0,-1,1):group32:fp32", "book(-1,1):group32:bf16", "book(0,1):group32:bf16",
    "uapot4:group32:bf16", "uapot2:group32:bf16", "fp4:group32:bf16", "log8f1:group32:fp32",
    "book(1e-30,-1e-30):group16:fp32", "log4f1:group32@0:fp32",
]  # fmt: skip
OFFSETS = [
    "uint4:group32:fp16:offset", "int4:group64:fp32:offset:recip", "nf4:group64:fp32:offset",
    "e2m1:group32:e8m0/ceil:offset", "int8:tensor:fp32:offset(bf16)", "e4m3:tile4x16:bf16:offset",
    "nf4:group16:e4m3:offset", "log4:group32:fp32:offset", "int4:group16@0:fp32:offset",
    "int8:group7:fp32:offset:stochastic", "e2m1:group16:(e4m3:token:fp32):offset(fp16)",
    "uint4:token:fp16:offset",
]  # fmt: skip
CODE_SCALES = [
    "nvfp4_e5m3", "int8:group32:ue4m3", "uint4:group16:ue6m2:asym", "int4:group32:ue5m3:full",
    "log4:group16:ue7m0", "ternary:group32:ue5m3", "binary:group16:ue4m4", "e2m1:group32:ue7m1",
    "e2m1:group16:ue5m3:stochastic", "int8:token:ue5m3r0:recip", "e4m3:tile4x16:ue2m1r0",
    "e3m2:group16@0:ue3m2", "nf4:group16:ue5m3r8", "int8:tensor:ue5m3",
    "uint4:group32:ue5m3:offset",
]  # fmt: skip
FLOAT_ZEROS = [
    "uint4:group64:fp16:asym(fp16)", "int8:token:fp32:asym(fp32)", "uint8:group7:bf16:asym(bf16)",
    "uint8:tensor:fp32:asym(fp32):recip", "int4:group16@0:fp32:asym(fp16):nearest_away",
    "int8:group32:e8m0/floor:asym(fp32):stochastic", "uint4:group16:e4m3:asym(bf16)",
    "int12:tile4x16:fp32:asym(fp32):down", "uint2:channel0:pow2/ceil:asym(fp16):up",
]  # fmt: skip
