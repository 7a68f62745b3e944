# SPDX-License-Identifier: BSD-3-Clause
"""Measuring the ways to run a linear layer here, and keeping the fastest (`tune`)."""

from pathlib import Path

import torch
import triton

from blockscale.core.operand import Quantizer
from blockscale.core.parse import parse
from blockscale.kernels.cuda import tables
from blockscale.kernels.cuda.linear import device_name, multiply
from blockscale.kernels.cuda.matmul import hopper
from blockscale.kernels.cuda.matmul.choice import WayChoice, to_measure
from blockscale.kernels.cuda.matmul.codes import pair
from blockscale.kernels.cuda.matmul.operands import Codes, ProductCall, Weight, read
from blockscale.kernels.cuda.matmul.order import PARTS
from blockscale.kernels.cuda.matmul.reading import reading
from blockscale.kernels.cuda.quantize import choose_quantize


def tune_linear(
    fmt: str, input_fmt: str, shape: tuple[int, int, int], path: Path | None = None
) -> WayChoice:
    """Measure every candidate for x [m, k] bfloat16 and a weight [n, k], and record the fastest.

    fmt, input_fmt: spellings; an empty `input_fmt` leaves x as it is
    shape: m, n, k
    path: the table to add to, by default this machine's (kernels.tuned.cache_file)

    Raises ValueError if no candidate can run the format at this shape.
    """
    m, n, k = shape
    fmt, input_fmt = str(parse(fmt)), str(parse(input_fmt)) if input_fmt else ""
    weight = _weight(fmt, n, k)
    x = torch.randn(m, k, device="cuda").to(torch.bfloat16)
    by = Quantizer(None, None, None, input_fmt)
    values = read(x, by)
    what = pair(fmt, values.element, k, x.dtype) if isinstance(values, Codes) else ""
    r = None if what else reading(fmt, k)
    if not what and r is None:
        raise ValueError(f"{fmt} at k = {k} has only one kernel: there is nothing to tune")
    parts = 1 if isinstance(values, Codes) else PARTS[values.x.dtype]
    call = ProductCall(what or "weight", fmt, m * parts, n, k, hopper.can_run(weight.codes))

    def run(choice: WayChoice) -> torch.Tensor:
        return multiply(read(x, by), weight, fmt, None, x.dtype, choice)

    best, _ = tables.fastest(to_measure(call, r), run, _milliseconds)
    at = tables.key(call.what, fmt, device_name(x))
    tables.record({at: {f"{call.rows},{n},{k}": best.entry()}}, path)
    return best


def _weight(fmt: str, n: int, k: int) -> Weight:
    """A quantized weight of normal numbers."""
    form = parse(fmt)
    codes, scale, *rest = choose_quantize(torch.randn(n, k, device="cuda"), fmt, None)
    zero = rest.pop() if form.asym else None
    return Weight(codes, scale, zero, rest[0] if rest else None)


def _milliseconds(call: object) -> float:
    """The median time of a call, with the L2 cache flushed before each."""
    return float(triton.testing.do_bench(call, warmup=10, rep=50, return_mode="median"))
