# SPDX-License-Identifier: BSD-3-Clause
"""Norms and softmax on integers, within their stated errors of the fused graph."""

import pytest
import torch
from torch import nn

import blockscale as bs
from tests.graph.lowering.integers.flows import BOTH, INT8, INT16, UINT8, compared, fused, integers


def step_of(graph, *x):
    lowered = integers(graph)
    return 2.0 ** next(n for n in lowered.graph.nodes if "dequantize" in str(n.target)).args[2]


def norms():
    for norm, name in ((nn.LayerNorm(48), "layer_norm"), (nn.RMSNorm(48), "rms_norm"),
                       (nn.LayerNorm(48, elementwise_affine=False), "layer_norm")):  # fmt: skip
        for parameter in norm.parameters():
            nn.init.normal_(parameter)
        yield norm, name


@pytest.mark.some(12)
@pytest.mark.parametrize("fmt", [INT8, UINT8, INT16])
@pytest.mark.parametrize("case", range(3))
def test_norms(case, fmt):
    """One step of the result, seldom more than the half that rounding takes; or 2^-13 of it."""
    torch.manual_seed(0)
    norm, name = list(norms())[case]
    x = torch.randn(64, 48) * 3
    graph = fused(norm, x, {f"op:{name}": {"input": fmt, "output": INT16}})
    found, expected = compared(graph, x)
    step = step_of(graph, x)
    assert (found - expected).abs().max() <= step + 2.0**-13 * 3
    found, expected = compared(graph, x * 0)
    assert (found - expected).abs().max() <= step


@pytest.mark.slow
@pytest.mark.parametrize("output", ["uint8:tensor:pow2/nearest", INT8, INT16])
def test_softmax(output):
    torch.manual_seed(0)
    x = torch.randn(30, 40) * 4
    graph = fused(nn.Softmax(-1), x, {"op:softmax": {"input": INT8, "output": output}})
    found, expected = compared(graph, x)
    assert (found - expected).abs().max() <= 2 * step_of(graph, x) + 2.0**-8


@pytest.mark.parametrize(
    ("model", "rules", "message"),
    [
        (nn.Softmax(0), {"op:softmax": BOTH}, "softmax.* is over dimension 0: only the last"),
        (
            nn.Softmax(-1),
            {"op:softmax": {"input": INT8}},
            "softmax.* needs a format for its result",
        ),
        (nn.LayerNorm((4, 8)), {"op:layer_norm": BOTH}, "is over 2 dimensions: only the last"),
        (nn.LayerNorm(8), {"op:layer_norm": {"input": INT8}}, "has no format for its result"),
    ],
)
def test_what_is_refused(model, rules, message):
    graph = fused(model, torch.randn(4, 8), rules)
    with pytest.raises(bs.graph.NotIntegerError, match=message):
        bs.graph.lower(graph, "integer")
