# SPDX-License-Identifier: BSD-3-Clause
"""Other changes of shape: the methods view, reshape and contiguous."""

from typing import Any

from torch import fx

from blockscale.graph.integer.builder import Builder, Value
from blockscale.graph.integer.layers import NotIntegerError

APPLIES_TO = ("view", "reshape", "contiguous")


def rule(builder: Builder, node: fx.Node, module: Any) -> Value:
    """The call as it is, unless channels have scales of their own, which would change places."""
    del module
    fixed = builder.argument(node, 0).fixed
    if fixed is not None and fixed.exponent.numel() > 1 and node.target != "contiguous":
        raise NotIntegerError(
            f"{builder.name(node)} mixes channels of several scales: use flatten(1), or give the "
            f"layer before it an output format"
        )
    return builder.add_same(node, fixed)
