# SPDX-License-Identifier: BSD-3-Clause
"""Types that gguf-py has no decoder for, by their layout (checkpoints.md, section 3)."""

import torch

from blockscale.core.parse import parse
from blockscale.core.reference import QParams, dequantize
from blockscale.export.checkpoints.gguf.simple_types import SIMPLE_TYPES as TYPES


def test_codes_of_q1_0_and_q2_0() -> None:
    bits = torch.zeros(1, 18, dtype=torch.uint8)
    bits[0, :2] = torch.tensor([2.0], dtype=torch.float16).view(torch.uint8)
    bits[0, 2], bits[0, 17] = 0b00000101, 0b10000000
    parts = TYPES["Q1_0"].apart(bits)
    signs = torch.full((128,), -1)
    signs[[0, 2, 127]] = 1
    assert parts["codes"][0].tolist() == signs.tolist() and parts["scale"].item() == 2
    bits[0, 2:] = 0b11100100
    parts = TYPES["Q2_0"].apart(bits)
    values = dequantize(
        parts.pop("codes"), QParams(**parts), parse(TYPES["Q2_0"].format), torch.float32
    )
    assert values[0, :8].tolist() == [-2.0, 0.0, 2.0, 4.0] * 2
