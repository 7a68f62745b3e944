# SPDX-License-Identifier: BSD-3-Clause
"""Pools and means on integers."""

import pytest
import torch
from torch import nn

import blockscale as bs
from tests.graph.lowering.integers.flows import BOTH, INT8, UINT8, check, compared, fused

POOLS = [
    (nn.MaxPool2d(2), "max_pool2d", 2), (nn.MaxPool2d(3, 2, 1, ceil_mode=True), "max_pool2d", 2),
    (nn.MaxPool1d(2), "max_pool1d", 1), (nn.AvgPool2d(2), "avg_pool2d", 2),
    (nn.AvgPool2d(4, 2, 1), "avg_pool2d", 2), (nn.AvgPool1d(2), "avg_pool1d", 1),
    (nn.AdaptiveAvgPool2d(1), "adaptive_avg_pool2d", 2),
    (nn.AdaptiveAvgPool2d((2, 4)), "adaptive_avg_pool2d", 2),
]  # fmt: skip


@pytest.mark.pairs
@pytest.mark.slow
@pytest.mark.parametrize("rule", [False, True])
@pytest.mark.parametrize("fmt", [INT8, UINT8])
@pytest.mark.parametrize("case", range(len(POOLS)))
def test_pools(case, fmt, rule):
    torch.manual_seed(0)
    pool, name, dims = POOLS[case]
    conv = (nn.Conv1d, nn.Conv2d)[dims - 1]
    model = nn.Sequential(conv(2, 4, 3, padding=1), pool, conv(4, 2, 1))
    x = torch.randn(2, 2, *[8] * dims)
    rules = {f"op:{name}": {"input": fmt, "output": fmt}} if rule else {}
    graph = fused(model, x, rules, fmt=fmt)
    check(graph, x)
    check(graph, 9 * x)


class Mean(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.dims = dims

    def forward(self, x):
        return x.mean(self.dims)


@pytest.mark.some(6)
@pytest.mark.parametrize(("size", "dims"), [((3, 4, 8), [3]), ((3, 7, 7), [2, 3]), ((3, 5), [-1])])
def test_means_round_once(size, dims):
    """Any other number than a power of two divides: float rounds twice, and may differ at a tie."""
    torch.manual_seed(0)
    x = torch.randn(50, *size)
    graph = fused(Mean(dims), x,
                  {"op:mean": BOTH})  # fmt: skip
    found, expected = compared(graph, x)
    step = float(expected.abs()[expected != 0].min())
    assert ((found - expected).abs() <= step).all()
    assert (found != expected).float().mean() < 0.01


@pytest.mark.parametrize(
    ("model", "rules", "message"),
    [
        (
            nn.AvgPool2d(3, padding=1, count_include_pad=False),
            {"op:avg_pool2d": BOTH},
            "that varies",
        ),
        (
            nn.AvgPool2d(3),
            {"op:avg_pool2d": {"input": INT8}},
            "averages 9 values.*can be divided by exactly: set a format for its result",
        ),
        (nn.AdaptiveAvgPool2d(3), {"op:adaptive_avg_pool2d": BOTH}, "divides 8 into 3 windows"),
    ],
)
def test_what_is_refused(model, rules, message):
    graph = fused(model, torch.randn(1, 2, 8, 8), rules)
    with pytest.raises(bs.graph.NotIntegerError, match=message):
        bs.graph.lower(graph, "integer")
