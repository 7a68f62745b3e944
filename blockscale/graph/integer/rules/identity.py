# SPDX-License-Identifier: BSD-3-Clause
"""What passes its input on: nn.Identity, and dropout in evaluation."""

from typing import Any

import torch.nn.functional as F
from torch import fx, nn

from blockscale.core.torch_private import DropoutNd
from blockscale.graph.integer.builder import Builder, Value
from blockscale.graph.integer.layers import NotIntegerError

APPLIES_TO = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d)


def rule(builder: Builder, node: fx.Node, module: Any) -> Value:
    """The same value; dropout in training, which draws, is refused."""
    if isinstance(module, DropoutNd) and module.training and module.p:
        raise NotIntegerError(f"{builder.name(node)} drops values: call model.eval() first")
    return builder.inputs(node)[0]


def _dropout(p: float = 0.5, training: bool = True, inplace: bool = False) -> nn.Module:
    del inplace
    return nn.Dropout(p).train(training)


AS_MODULE = {F.dropout: _dropout}
