# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with
tests/gpu/test_linear.py: `excess`, `ROUNDS`, `stored`.
"""

import torch

from blockscale.core.operand import Operand, Quantizer
from blockscale.core.parse import parse
from blockscale.ops import primitives as P
from blockscale.ops.linear import quantized_input
from tests.support.cuda_matmul_exact import ulps_of

ROUNDS = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


NOTHING = (None, None, None)


def stored(n, k, fmt):
    w = torch.randn(n, k, generator=torch.Generator().manual_seed(0)).cuda()
    codes, *rest = P.choose_quantize.reference(w, fmt, None)
    scale, outer, zero_point = P.from_list(rest, parse(fmt))[:3]
    return codes, scale, zero_point, outer


def excess(y, x, weight, fmt, input_fmt, bias, ulps=None):
    ulps = ulps_of(x, fmt) if ulps is None else ulps
    values = quantized_input(x, Quantizer(*NOTHING, input_fmt)).double()
    dense = P.dequantize.reference(Operand(*weight, fmt, x.shape[-1]), torch.float32).double()
    exact = values @ dense.T + bias.double()
    size = values.abs() @ dense.abs().T + bias.double().abs()
    bound = ulps * 2.0**-24 * size
    bound += ROUNDS[x.dtype] * (exact.abs() + bound) + 1e-30
    return ((y.double() - exact).abs() / bound).max().item()
