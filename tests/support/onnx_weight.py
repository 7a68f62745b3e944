# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with tests/export/to_onnx/test_weight.py: `stored`."""

import torch

import blockscale as bs
from blockscale.core.operand import operand
from blockscale.core.parse import parse


def stored(spelling, shape=(12, 40)):
    torch.manual_seed(0)
    fmt = parse(spelling)
    x = torch.randn(shape) * 2.0 ** torch.randint(-3, 3, (shape[0], *[1] * (len(shape) - 1)))
    with bs.use("reference"):
        q = bs.quantize(x, fmt)
        return operand(q.packed, q.qparams, fmt, shape[-1]), q.dequantize()
