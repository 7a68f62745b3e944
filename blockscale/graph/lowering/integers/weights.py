# SPDX-License-Identifier: BSD-3-Clause
"""Weights as integers: codes of integer formats, and powers of two and their sums, decoded."""

import torch
from torch import Tensor

from blockscale.core.arithmetic.precision import exponent
from blockscale.core.arithmetic.sums import live_steps
from blockscale.core.format import Format
from blockscale.core.integer_scales import why_no_weights
from blockscale.core.operand import Value as FusedOperand
from blockscale.core.operand import operand
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.graph.lowering.integers.builder import Builder, Task
from blockscale.graph.lowering.integers.fixed import NotIntegerError, check_scale, steps
from blockscale.ops.primitives import dequantize

MOST_BITS = 40  # of a weight: sums of 2^15 products with 8 bits stay in int64
_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)


def weight_of(builder: Builder, task: Task, weight: FusedOperand) -> tuple[Tensor, Tensor]:
    """Integers of a weight [n, k], of the narrowest dtype from int8 on, and exponents [n].

    What zero points there are is subtracted. Powers of two are integers times 2^-grain, or a finer
    power in rows with smaller values.

    Raises NotIntegerError for weights whose scales change within a sum or are no powers of two.
    """
    what = f"the weight of {task.what}"
    if not weight.fmt:
        raise NotIntegerError(f"{what} is in float: set a format such as int8 with 'channel0'")
    fmt = parse(weight.fmt)
    packed, scale = (builder.constant(part, what) for part in (weight.data, weight.scale))
    zero = builder.constant(weight.zero_point, what)
    assert packed is not None and scale is not None
    rows = packed.shape[0]
    check_weight(fmt, scale, rows, what)
    bare = operand(packed, QParams(_one(scale, fmt), None, zero), fmt, int(weight.size))
    values = dequantize.run(bare, torch.float32)
    unit_steps = steps(QParams(scale, None, None), fmt, what).reshape(-1).expand(rows)
    return whole(values, unit_steps, fmt, what)


def check_weight(fmt: Format, scale: Tensor, rows: int, what: str) -> None:
    """Raise NotIntegerError for weights of `rows` rows whose codes are no integers, or whose scales
    change within a sum or are no powers of two."""
    if reason := why_no_weights(fmt):
        raise NotIntegerError(f"{what} is {fmt}, {reason}")
    check_scale(fmt, what)
    if scale.numel() not in (1, rows) or scale.shape[-1] != 1:
        raise NotIntegerError(
            f"{what} is {fmt}: its scales change within a sum, which needs one: use "
            "'channel0' or 'tensor'"
        )


def whole(values: Tensor, unit_steps: Tensor, fmt: Format, what: str) -> tuple[Tensor, Tensor]:
    """Values [n, k] of fmt's element, steps [n] -> integers [n, k], exponents [n].

    values = integers * 2^exponents / steps, exactly. Raises NotIntegerError for values that are not
    finite, and rows that need more than 40 bits.
    """
    grain = fmt.element.grain
    assert grain is not None
    if not bool(values.isfinite().all()):
        raise NotIntegerError(f"{what} has codes that mean NaN or infinity")
    unit = live_steps(unit_steps * 2.0**-grain, (values == 0).all(1))
    finer = (-_lowest(values) - grain).clamp(min=0).amax(1)
    integers = torch.ldexp(values.to(torch.float64), (grain + finer)[:, None])
    if integers.numel() and float(integers.abs().max()) >= 2.0**MOST_BITS:
        raise NotIntegerError(
            f"{what} is {fmt} and its values, as integers, need more than {MOST_BITS} bits: "
            "use fewer bits of exponent, such as log5"
        )
    exact = integers.to(torch.int64)
    return exact.to(narrowest(exact)), exponent(unit) - finer


def _lowest(values: Tensor) -> Tensor:
    """values [...] float32 -> the exponent of the lowest bit of each that is 1, int32; 0 of 0."""
    fraction, power = torch.frexp(values)
    bits = (fraction.abs() * 2.0**24).to(torch.int64)
    last = torch.frexp((bits & -bits).to(torch.float32)).exponent - 1
    return torch.where(bits == 0, 0, power - 24 + last)


def narrowest(integers: Tensor) -> torch.dtype:
    """The narrowest signed dtype that holds all of these."""
    if not integers.numel():
        return torch.int8
    low, high = int(integers.min()), int(integers.max())
    return next(d for d in _INTEGERS if torch.iinfo(d).min <= low and high <= torch.iinfo(d).max)


def _one(scale: Tensor, fmt: Format) -> Tensor:
    """A stored scale under which a step is 1."""
    if scale.dtype == torch.uint8:
        return torch.full_like(scale, 127 + fmt.fraction_bits)
    return torch.ones_like(scale)
