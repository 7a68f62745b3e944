# SPDX-License-Identifier: BSD-3-Clause
"""nn.Flatten and torch.flatten."""

from dataclasses import replace

import torch
from torch import fx, nn

from blockscale.graph.integer.builder import Builder, Value
from blockscale.graph.integer.layers import NotIntegerError

APPLIES_TO = (nn.Flatten,)


def rule(builder: Builder, node: fx.Node, module: nn.Flatten) -> Value:
    """Exponents by channel are laid out as the values are."""
    value = builder.inputs(node)[0]
    fixed = value.fixed
    if fixed is not None and fixed.exponent.numel() > 1:
        if module.start_dim != 1:
            raise NotIntegerError(
                f"{builder.name(node)} mixes channels of several scales with batches"
            )
        whole = fixed.exponent.expand(1, *value.example.shape[1:])
        fixed = replace(fixed, exponent=module(whole).contiguous())
    return builder.add_step(node, nn.Flatten(module.start_dim, module.end_dim), [value], fixed)


def _flatten_from(start_dim: int = 0, end_dim: int = -1) -> nn.Module:
    return nn.Flatten(start_dim, end_dim)


AS_MODULE = dict.fromkeys((torch.flatten, "flatten"), _flatten_from)
