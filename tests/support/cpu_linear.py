# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with
tests/kernels/cpu/test_linear.py: `check`, `excess`, `NOTHING`, ….
"""

import torch
from torch import Tensor

import blockscale as bs
from blockscale.core.operand import Operand, Quantizer, operand
from blockscale.core.parse import parse
from blockscale.ops import primitives as P
from blockscale.ops.linear import linear, quantized_input
from blockscale.ops.op import OPS

ROUNDS = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


NOTHING = (None, None, None)


def stored(w: Tensor, fmt: str) -> tuple:
    """Codes, scale, zero point, outer scale and more of a weight, as the op takes them."""
    codes, *rest = P.choose_quantize.reference(w, fmt, None)
    whole = operand(codes, P.from_list(rest, parse(fmt)), fmt, w.shape[-1])
    return (*whole[:4], whole.more)


def packed(weight: tuple, fmt: str, size: int) -> Operand:
    """Those parts as one."""
    return Operand(*weight[:4], fmt, size, *weight[4:])


def excess(y: Tensor, x: Tensor, weight: tuple, fmt: str, input_fmt: str = "", **more) -> float:
    """How many times the tolerance y is off: at most 1 is right. NaN must be where it belongs."""
    bias, given = more.get("bias"), more.get("given", NOTHING)
    values = quantized_input(x, Quantizer(*given, input_fmt)).double()
    dense = P.dequantize.reference(packed(weight, fmt, x.shape[-1]), torch.float32).double()
    offset = torch.zeros(dense.shape[0]).double() if bias is None else bias.double()
    exact = values @ dense.T + offset
    assert (y.dtype, y.shape) == (x.dtype, exact.shape)
    size = values.abs() @ dense.abs().T + offset.abs()
    sums_fit = ~(size > torch.finfo(torch.float32).max)  # else parts may be ∞ and -∞
    assert torch.equal(y.isnan() & sums_fit, exact.isnan() & sums_fit)
    bound = OPS["linear"].ulps * 2.0**-24 * size
    bound += x.shape[-1] * 2.0**-149  # products below float32's smallest, in the reference too
    bound += ROUNDS[x.dtype] * (exact.abs() + bound) + torch.finfo(x.dtype).tiny * ROUNDS[x.dtype]
    misses = ((y.double() - exact).abs() / bound).nan_to_num(0.0, posinf=0.0)
    return misses.max().item() if misses.numel() else 0.0


def run(x: Tensor, weight: tuple, fmt: str, input_fmt: str = "", **more) -> Tensor:
    with bs.use("cpu"):
        return linear(
            x,
            packed(weight, fmt, x.shape[-1]),
            more.get("bias"),
            Quantizer(*more.get("given", NOTHING), input_fmt, None),
        )


def check(x: Tensor, weight: tuple, fmt: str, input_fmt: str = "", **more) -> None:
    y = run(x, weight, fmt, input_fmt, **more)
    assert excess(y, x, weight, fmt, input_fmt, **more) <= 1, (fmt, input_fmt, tuple(x.shape))
