# SPDX-License-Identifier: BSD-3-Clause
"""Maxima over windows: scales and order are the codes' own."""

from typing import Any

import torch.nn.functional as F
from torch import fx, nn

from blockscale.graph.integer.builder import Builder, Value
from blockscale.graph.integer.layers import NotIntegerError

APPLIES_TO = (nn.MaxPool2d,)


def rule(builder: Builder, node: fx.Node, module: nn.MaxPool2d) -> Value:
    """The maximum of codes is the code of the maximum."""
    value = builder.inputs(node)[0]
    fixed = builder.integers(node, value)
    if module.return_indices:
        raise NotIntegerError(
            f"{builder.name(node)} returns indices, which have no integer form here"
        )
    settings = (module.kernel_size, module.stride, module.padding, module.dilation)
    pool = nn.MaxPool2d(*settings, ceil_mode=module.ceil_mode)
    return builder.add_step(node, pool, [value], fixed)


def _max_pool2d(
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> nn.Module:
    """F.max_pool2d's arguments, whose order is not the module's."""
    return nn.MaxPool2d(kernel_size, stride, padding, dilation, return_indices, ceil_mode)


AS_MODULE = {F.max_pool2d: _max_pool2d}
