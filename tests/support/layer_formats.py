# SPDX-License-Identifier: BSD-3-Clause
"""Formats with every part that can stand beside codes, and blocks of every kind."""

FORMATS = (
    "nf4:group64:fp32",
    "uint4:group32:fp16:offset",
    "uint4:group32:(uint6:group8:fp16):offset(uint6:group8:fp16)",
    "int4:group32:(int6:group16:fp16)",
    "uint4:group64:fp16:asym(fp16)",
    "log8f3:channel0:fp32",
    "nf4:flat64:fp32",
    "fp4:flat24:(int8:flat5:fp32)",
    "int8:flat4@0:fp32",
    "int4:block4x*:fp16",
    "e2m1:block2x16:e4m3/inv",
    "int4:group32:fp16:signed",
    "uint5:block2x16:fp32:offset(bf16)",
    "int8:tensor:e8m0:offset",
)
REFERENCE = "ignore:no cpu kernel runs:UserWarning"  # formats without kernels run, and say so
