# SPDX-License-Identifier: BSD-3-Clause
"""Layers with weights on integers: the fused graph's bits."""

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import blockscale as bs
from blockscale.graph.lowering.integers.rules.products import largest_sum
from tests.graph.lowering.integers.flows import (
    BOTH,
    INT8,
    INT16,
    UINT8,
    WEIGHT,
    check,
    compared,
    fused,
    integers,
)


@pytest.mark.slow
@pytest.mark.parametrize("fmt", [INT8, UINT8, "int6:tensor:pow2/ceil:full",
                                 "int8:tensor:e8m0/rceil",
                                 "uint7:tensor:pow2/floor:asym:down", INT16])  # fmt: skip
@pytest.mark.parametrize("weight", [WEIGHT, "int4:channel0:e8m0", "ternary:channel0:pow2/nearest",
                                    "int8:channel0:pow2/nearest:asym"])  # fmt: skip
def test_linear(weight, fmt):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 24), nn.ReLU(), nn.Linear(24, 8, bias=False))
    x = torch.randn(6, 40)
    graph = fused(model, x, weight=weight, fmt=fmt)
    for each in (x, 100 * x, x * 0, 1e30 * x.sign()):
        check(graph, each)


CONVS = [
    (nn.Conv1d(4, 8, 3, 2, 1), (2, 4, 9)),
    (nn.Conv2d(4, 8, 3, padding=1, dilation=2, groups=2), (2, 4, 9, 8)),
    (nn.Conv2d(8, 8, 3, groups=8, padding="same"), (2, 8, 5, 6)),
    (nn.Conv2d(32, 64, 3, padding=1), (2, 32, 6, 5)),
    (nn.Conv3d(2, 4, 2, padding=1), (2, 2, 4, 3, 5)),
    (nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2), (2, 4, 5, 4)),
    (nn.ConvTranspose1d(4, 6, 3, 2, dilation=2), (2, 4, 5)),
]


@pytest.mark.slow
@pytest.mark.parametrize("fmt", [INT8, UINT8])
@pytest.mark.parametrize("case", range(len(CONVS)))
def test_convolutions(case, fmt):
    torch.manual_seed(case)
    layer, size = CONVS[case]
    dims = len(size) - 2
    last = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1](layer.out_channels, 3, 1)
    x = torch.randn(size)
    graph = fused(nn.Sequential(layer, nn.ReLU(), last), x, fmt=fmt, output=fmt)
    check(graph, x)
    check(graph, 30 * x)


class Products(nn.Module):
    def forward(self, a, b):
        return a @ b


@pytest.mark.slow
def test_products_of_two_activations():
    a, b = torch.randn(3, 5, 8), torch.randn(3, 8, 4)
    for rules in ({"op:matmul": BOTH}, {"op:matmul": {"input": UINT8}}):
        check(fused(Products(), (a, b), rules), a, b)


class Attention(nn.Module):
    def __init__(self, causal=False, masked=False):
        super().__init__()
        self.causal, self.masked = causal, masked

    def forward(self, q, k, v, *seen):
        mask = seen[0] if self.masked else None
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=self.causal)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "causal", "masked"])
def test_attention(kind):
    """Within the stated error: a step of the result and 2^-9 of the largest value for each key."""
    torch.manual_seed(0)
    x = tuple(torch.randn(2, 3, 7, 16) for _ in range(3))
    seen = (torch.rand(2, 1, 1, 7) > 0.3,) if kind == "masked" else ()
    model = Attention(kind == "causal", kind == "masked")
    graph = fused(model, (*x, *seen), {"op:scaled_dot_product_attention": BOTH})
    found, expected = compared(graph, *x, *seen)
    top = float(x[2].abs().max())
    assert (found - expected).abs().max() <= top / 64 + 7 * top / 512


def test_embedding():
    model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 4))
    model[0].weight.data *= 2.0 ** torch.arange(20)[:, None]  # rows of several scales
    x = torch.randint(0, 20, (3, 5))
    for weight in ("int8:tensor:pow2/nearest", "int8:channel0:pow2/nearest"):
        check(fused(model, x, {"0": {"weight": weight}}), x)


def refused(message, model, x, rules=None, **named):
    graph = fused(model, x, rules, **named)
    with pytest.raises(bs.graph.NotIntegerError, match=message):
        bs.graph.lower(graph, "integer")


def test_what_is_refused():
    linear, x = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.randn(2, 8)
    refused("quantize of 0.* is int8:tensor:fp32: requanti.*power-of-two", linear, x,
            fmt="int8:tensor:fp32")  # fmt: skip
    refused("the weight of .* is int8:channel0:fp32: .*power-of-two", linear, x,
            weight="int8:channel0:fp32")  # fmt: skip
    refused("the weight of .*change within a sum", linear, x, weight="int8:group4:e8m0")
    refused("the weight of .* is e2m1.*codes are n", linear, x, weight="e2m1:tensor:e8m0")
    refused("chooses its scale at run time", linear, x, fmt="int8:token:pow2/nearest")
    refused("a shift cannot give", linear, x, fmt="e4m3:tensor:pow2/floor")
    gelu = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
    refused(re.escape("a rule 'op:gelu' with an input"), gelu, x)
    refused("gelu.* has no integer form|takes floats", nn.Sequential(nn.Softplus(), *linear), x)
    q = torch.randn(1, 1, 4, 16)
    refused("a query of 16 bits: set a format of 8 bits", Attention(), (q, q, q),
            {"op:scaled_dot_product_attention": {"input": INT16, "output": INT8}})  # fmt: skip


def test_a_bound_is_from_the_codes():
    weight = torch.tensor([[-128, 5], [1, 1]], dtype=torch.int8)
    assert largest_sum(weight, torch.tensor([-7, 3]), 200) == 133 * 200 + 7
    assert largest_sum(weight[:0], None, 200) == 0


@pytest.mark.slow
def test_wide_sums_are_right_and_said():
    """127 * 32767 * 4096 is beyond int32: int64, said in the ledger; the float graph rounds."""
    layer = nn.Linear(4096, 2, bias=False)
    nn.init.ones_(layer.weight)
    graph = fused(nn.Sequential(layer), torch.ones(1, 4096), fmt=INT16)
    lowered = integers(graph)
    (entry,) = [each for each in bs.graph.ledger(lowered) if each.name == "0"]
    assert "int64" in str(entry.notes)
    assert lowered(torch.ones(1, 4096)).tolist() == [[4096 * 127 / 128] * 2]


def _apart(power):
    """A layer with one output of weights 2^-power, and inputs."""
    model, x = nn.Sequential(nn.Linear(64, 2)), torch.rand(5, 64)
    with torch.no_grad():
        model[0].weight[0].fill_(2.0**-power), model[0].weight[1].fill_(1.0)
        model[0].bias.zero_()
    return fused(model, x, weight=WEIGHT, fmt=UINT8), x


@pytest.mark.some(5)
@pytest.mark.parametrize("power", [0, 9, 10, 12, 31])
def test_sums_of_scales_far_apart_are_held(power):
    """Without a format sums of all outputs get the smallest step: some 2^20, times 2^power, leave
    int32 at 12 and 31."""
    graph, x = _apart(power)
    lowered = integers(graph)
    with torch.no_grad(), bs.use("reference"):
        expected, found = graph(x), lowered(x)
    with torch.no_grad():
        assert torch.equal(lowered(x), expected)
    assert torch.equal(found, expected)


@pytest.mark.slow
def test_scales_too_far_apart_for_sums():
    with pytest.raises(bs.graph.NotIntegerError, match=r"scales differ by 2\^40, over 2\^31"):
        bs.graph.lower(_apart(40)[0], "integer")
