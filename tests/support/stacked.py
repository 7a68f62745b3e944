# SPDX-License-Identifier: BSD-3-Clause
"""Quantized stacks of matrices, as mixtures have for their experts."""

import torch

import blockscale as bs
from blockscale.core.joined_weights import of_stack
from blockscale.core.operand import Operand
from blockscale.core.parse import parse

SPELLINGS = [
    "mxfp4", "nvfp4", "int8_channel", "int4:group32:fp32", "nf4:group64:fp32", "int8:tensor:fp32",
    "int4:group7:fp32:asym", "nf4:flat64:fp32", "uint4:tile3x16:fp32:asym",
    "uint4:group16:(uint8:group2:fp16):offset(uint8:tensor:fp16)", "int8:tensor:fp32:offset",
    "e2m1:group16:e4m3/inv", "ternary:tensor:fp32",
]  # fmt: skip


def stacked(spelling: str, experts: int = 3, n: int = 12, k: int = 64, parts: int = 1) -> Operand:
    torch.manual_seed(2)
    x = torch.randn(experts, n, k) * torch.linspace(1, 40, experts).reshape(-1, 1, 1)
    x[:, : n // 2] *= 3
    made: Operand = bs.quantize(x, of_stack(parse(spelling), x.shape, parts)).operand
    return made
