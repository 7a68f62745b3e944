# SPDX-License-Identifier: BSD-3-Clause
"""The size of a tensor, which is the same on integers."""

from typing import Any

from torch import fx

from blockscale.graph.integer.builder import Builder, Value
from blockscale.graph.integer.layers import NotIntegerError

APPLIES_TO = ("size", getattr)


def rule(builder: Builder, node: fx.Node, module: Any) -> Value:
    """`x.size(...)` and `x.shape`, which are the same on integers."""
    del module
    if node.target is getattr and node.args[1] != "shape":
        raise NotIntegerError(f"{builder.name(node)} of {node.args[1]!r} has no integer form here")
    return builder.add_same(node, None)
