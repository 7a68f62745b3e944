# SPDX-License-Identifier: BSD-3-Clause
"""From a graph of torch's ops to bytes, and what no kernel runs."""

import logging
import sys

import pytest
import torch
from torch import nn

from blockscale.export.to_executorch import lowering
from blockscale.graph.program import imported


def test_settings_are_as_they_were():
    depth, level = sys.getrecursionlimit(), logging.root.manager.disable
    with pytest.raises(KeyError), lowering._quiet():
        raise KeyError
    assert (sys.getrecursionlimit(), logging.root.manager.disable) == (depth, level)


def test_nodes_that_are_left_are_named():
    from torch.ao.quantization.fx import _decomposed  # noqa: F401 - registers the ops

    class Lonely(nn.Module):
        def forward(self, x):
            ops = torch.ops.quantized_decomposed
            return ops.quantize_per_tensor.default(x, 0.1, 0, -128, 127, torch.int8)

    program = torch.export.export(Lonely(), (torch.randn(2),))
    with pytest.raises(lowering.LeftError, match="XNNPACK did not take quantize_per_tensor"):
        lowering._check(program)
    assert imported(program) is not None
