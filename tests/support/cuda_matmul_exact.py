# SPDX-License-Identifier: BSD-3-Clause
"""Products in float64, as numerics.md means them, and how far a result is from one."""

import torch
from torch import Tensor

from blockscale.core.operand import Operand, Quantizer
from blockscale.core.parse import parse
from blockscale.kernels.cuda.matmul import composed
from blockscale.kernels.cuda.matmul.codebook import parts_of
from blockscale.ops import primitives as P
from blockscale.ops.linear import quantized_input
from blockscale.ops.op import OPS

ROUNDS = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
NOTHING = (None, None, None)


def ulps_of(x: Tensor, fmt: str) -> float:
    """The units of 2^-24 that sums and values lose at most (docs/numerics.md, section 7)."""
    k = x.shape[-1]
    least = composed.least_rows(fmt, k)
    if x.dtype is torch.bfloat16 and least is not None and x.numel() >= least * k:
        return 2.0**15 + max(OPS["linear"].ulps, k / 8)
    element = parse(fmt).element.numbers(False)
    table = element is not None and element.family == "codebook" and not parse(fmt).offset
    if x.dtype is torch.bfloat16 and table and len(parts_of(element).tables) > 1:
        return 2.0**15
    return OPS["linear"].ulps


def stored(w: Tensor, fmt: str) -> tuple:
    codes, *rest = P.choose_quantize.reference(w, fmt, None)
    scale, outer, zero_point = P.from_list(rest, parse(fmt))[:3]
    return codes, scale, zero_point, outer


def excess(y: Tensor, x: Tensor, weight: tuple, fmt: str, input_fmt: str = "", **more) -> float:
    """How many times the tolerance y is off: at most 1 is right. NaN must be where it belongs."""
    bias, given = more.get("bias"), more.get("given", NOTHING)
    values = quantized_input(x, Quantizer(*given, input_fmt)).double()
    dense = P.dequantize.reference(Operand(*weight, fmt, x.shape[-1]), torch.float32).double()
    offset = torch.zeros(dense.shape[0]).double() if bias is None else bias.double()
    exact = values @ dense.T + offset
    assert (y.dtype, y.shape) == (x.dtype, exact.shape)
    assert torch.equal(y.isnan(), exact.isnan())
    size = values.abs() @ dense.abs().T + offset.abs()
    bound = more.get("ulps", ulps_of(x, fmt)) * 2.0**-24 * size
    bound += ROUNDS[x.dtype] * (exact.abs() + bound) + torch.finfo(x.dtype).tiny * ROUNDS[x.dtype]
    misses = ((y.double() - exact).abs() / bound).nan_to_num(0.0, posinf=0.0)
    return misses.max().item() if misses.numel() else 0.0
