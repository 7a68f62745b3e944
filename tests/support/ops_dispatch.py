# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with tests/ops/test_dispatch.py: `call`, `X`."""

import torch
from torch import Tensor

from blockscale.core.operand import Quantizer
from blockscale.ops.primitives import fake_quantize

X = torch.linspace(-3, 3, 64).reshape(4, 16)


def call(x: Tensor) -> Tensor:
    return fake_quantize(x, Quantizer(None, None, None, "mxfp8", None))
