# SPDX-License-Identifier: BSD-3-Clause
"""Averages over windows of 2^n values: sums, under an exponent smaller by n."""

import math
from typing import Any

import torch.nn.functional as F
from torch import fx, nn

from blockscale.graph.integer import steps
from blockscale.graph.integer.builder import Builder, Value
from blockscale.graph.integer.layers import Fixed, NotIntegerError

APPLIES_TO = (nn.AvgPool2d, nn.AdaptiveAvgPool2d)
AS_MODULE = {F.avg_pool2d: nn.AvgPool2d, F.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d}


def rule(builder: Builder, node: fx.Node, module: Any) -> Value:
    """An average is a sum under a smaller exponent, if the windows are known and of one size."""
    value = builder.inputs(node)[0]
    if isinstance(module, nn.AdaptiveAvgPool2d):
        size = (value.example.shape[-2], value.example.shape[-1])
        kernel = _divided(builder, node, size, module.output_size)
        return _sums(builder, node, value, steps.Windows(kernel, kernel, [0, 0]), size)
    if module.ceil_mode or module.divisor_override or not module.count_include_pad:
        raise NotIntegerError(
            f"{builder.name(node)} divides by a number that varies: leave ceil_mode, "
            "divisor_override and count_include_pad as they are by default"
        )
    windows = steps.Windows(_pair(module.kernel_size), _pair(module.stride), _pair(module.padding))
    return _sums(builder, node, value, windows, None)


def _sums(
    builder: Builder,
    node: fx.Node,
    value: Value,
    windows: steps.Windows,
    size: tuple[int, int] | None,
) -> Value:
    """Averages over windows of 2^n values: their sum, under an exponent smaller by n."""
    fixed, count = builder.integers(node, value), math.prod(windows.kernel)
    if count & (count - 1):
        raise NotIntegerError(
            f"{builder.name(node)} averages {count} values: only a power of two can be done "
            "by a shift"
        )
    pool = steps.SumPool(fixed.zero_point, windows, size)
    sums = Fixed(fixed.exponent - (count.bit_length() - 1), 0, fixed.largest * count)
    builder.add_sums(node, sums)
    return builder.add_step(node, pool, [value], sums)


def _divided(builder: Builder, node: fx.Node, size: tuple[int, int], wanted: Any) -> list[int]:
    """The windows that give `wanted` maps of a map of `size`."""
    kernel = []
    for n, parts in zip(size, _pair(wanted), strict=True):
        count = n if parts is None else parts
        if n % count:
            raise NotIntegerError(
                f"{builder.name(node)} divides {n} into {count} windows of different sizes"
            )
        kernel.append(n // count)
    return kernel


def _pair(size: Any) -> list[Any]:
    return list(size) if isinstance(size, tuple | list) else [size, size]
