# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with
tests/ops/test_round_columns.py: `FORMATS`, `scales_for`.
"""

from torch import Tensor

import blockscale as bs
from blockscale.core.operand import Quantizer, quantizer
from blockscale.ops import primitives

FORMATS = [
    "int4:group1:fp32", "int4:group1:fp32:full", "int4:group1:fp32:signed",
    "uint4:group1:fp16:asym", "uint4:group1:fp32:asym(fp16)", "int4:group1:fp32:offset",
    "e2m1:group1:(e4m3:group1:fp32)", "nf4:group1:bf16", "int8:group1:fp32:recip",
    "e2m1:group1:e8m0",
    "ternary:group1:fp32", "binary:group1:fp32", "int12:group1:fp32", "book3:group1:fp32",
    "int4:group1:fp32:toward_zero",
]  # fmt: skip


def scales_for(x: Tensor, fmt: str) -> Quantizer:
    """Scales that numbers of about the size of x meet, one each."""
    form = bs.parse(fmt)
    low = -x.float().abs() - 0.5 if "offset" in fmt else x.float().abs() + 0.5
    return quantizer(primitives.from_list(primitives.choose_qparams(low, str(form)), form), form)
