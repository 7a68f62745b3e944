# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with
tests/ops/test_tensor.py: `bits`, `parts`, `STOCHASTIC`.
"""

import torch
from torch import Tensor

import blockscale as bs

STOCHASTIC = "int8:token:fp32:stochastic"


def bits(*parts: Tensor | None) -> list:
    """What tensors are made of: equality that knows NaN and -0, also of uint16."""
    present = [t for t in parts if t is not None]
    plain = [t.flatten().clone(memory_format=torch.contiguous_format) for t in present]
    data = [t.view(torch.uint8).tolist() for t in plain]
    return [(t.dtype, tuple(t.shape), d) for t, d in zip(present, data, strict=True)]


def parts(q: bs.QTensor) -> list:
    return [*bits(q.packed, *q.qparams), str(q.format), q.size]
