# SPDX-License-Identifier: BSD-3-Clause
"""ReLU and its bounded kin: the larger and the smaller of two codes."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from blockscale.graph.integer import steps
from blockscale.graph.integer.builder import Builder, Value
from blockscale.graph.integer.layers import Fixed, NotIntegerError

APPLIES_TO = (nn.ReLU, nn.ReLU6, nn.Hardtanh)
AS_MODULE = {
    **dict.fromkeys((F.relu, torch.relu, torch.relu_, "relu", "relu_"), nn.ReLU),
    F.relu6: nn.ReLU6,
    F.hardtanh: nn.Hardtanh,
}


def rule(builder: Builder, node: fx.Node, module: Any) -> Value:
    """ReLU is max(code, zero_point); an upper bound must be a whole number of steps."""
    value = builder.inputs(node)[0]
    fixed = builder.integers(node, value)
    bounds = {nn.ReLU: (0.0, math.inf), nn.ReLU6: (0.0, 6.0)}.get(type(module))
    lowest, highest = bounds or (module.min_val, module.max_val)
    ends = [_in_steps(builder, node, fixed, bound) for bound in (lowest, highest)]
    zero = fixed.zero_point
    return builder.add_step(node, steps.Clamp(ends[0] + zero, ends[1] + zero), [value], fixed)


def _in_steps(builder: Builder, node: fx.Node, fixed: Fixed, bound: float) -> Tensor:
    """A bound as codes [exponent's shape] int32, as far as any code goes."""
    reach = float(fixed.largest)
    ends = torch.full_like(fixed.exponent, bound, dtype=torch.float64)
    whole = torch.ldexp(ends, -fixed.exponent)
    within = whole.clamp(-reach, reach)
    if not bool((within == within.round()).all()):
        step = 2.0 ** int(fixed.exponent.max())
        raise NotIntegerError(
            f"{builder.name(node)}: {bound} is not a multiple of the step {step} of its "
            "input: use a smaller scale there, or ReLU"
        )
    return within.to(torch.int32)
