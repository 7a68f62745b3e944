# SPDX-License-Identifier: BSD-3-Clause
"""A sum of two values: both are shifted left to the smaller exponent, then added."""

import operator
from typing import Any

import torch
from torch import fx

from blockscale.graph.integer import steps
from blockscale.graph.integer.builder import Builder, Value
from blockscale.graph.integer.layers import Fixed, NotIntegerError

APPLIES_TO = (operator.add, operator.iadd, torch.add, "add", "add_")


def rule(builder: Builder, node: fx.Node, module: Any) -> Value:
    """Both sides shifted left to the smaller exponent, then added."""
    del module
    if len(node.args) != 2 or node.kwargs.get("alpha", 1) != 1:
        raise NotIntegerError(f"{builder.name(node)} scales what it adds")
    values = [builder.argument(node, index) for index in (0, 1)]
    parts = [builder.integers(node, value) for value in values]
    exponent = torch.minimum(parts[0].exponent, parts[1].exponent)
    shifts = [part.exponent - exponent for part in parts]
    if any(int(shift.max()) > 31 for shift in shifts):
        raise NotIntegerError(f"{builder.name(node)} adds values whose scales differ by over 2^31")
    reach = [part.largest << int(shift.max()) for part, shift in zip(parts, shifts, strict=True)]
    fixed = Fixed(exponent, 0, sum(reach))
    builder.add_sums(node, fixed)
    zero_points = (parts[0].zero_point, parts[1].zero_point)
    return builder.add_step(node, steps.Add((shifts[0], shifts[1]), zero_points), values, fixed)
