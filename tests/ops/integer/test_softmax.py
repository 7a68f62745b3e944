# SPDX-License-Identifier: BSD-3-Clause
"""Softmax and attention of integers: the stated error against float64, and their parts."""

import math

import pytest
import torch
import torch.nn.functional as F

from blockscale.graph.lowering.integers.rules.products import exponential
from blockscale.ops.integer.softmax import POWER, attention, powers, shares, softmax
from tests.support.integer_oracle import INT8, shifts, whole

PROBABILITY = "uint8:tensor:pow2/nearest"


@pytest.mark.parametrize("step", [-12, -6, -3, 0])
def test_powers_of_every_distance(step):
    """Every distance of 8-bit codes: within 2^-9 of the power, and half a unit of 2^-15."""
    factor, right, table = exponential(step, 1.0, "it")
    x = torch.arange(-255, 1, dtype=torch.int32)
    found = powers(x, factor, right, table, None).double() / 2**POWER
    exact = (x.double() * 2.0**step).exp()
    assert (
        (found - exact).abs() <= exact * (2.0**-8 + 2.0**-8 * exact.log().abs() / 16) + 2.0**-POWER
    ).all()


@pytest.mark.some(3)
@pytest.mark.parametrize("n", [1, 2, 64, 1000])
@pytest.mark.parametrize("step", [-7, -4, -1])
def test_softmax(n, step):
    x = whole(-127, 127, 100, n, dtype=torch.int8)
    x[0], x[1] = 0, -127
    factor, right, table = exponential(step, 1.0, "it")
    found = softmax(x, factor, right, table, 8, 0, 0, 255, PROBABILITY).double() / 256
    exact = F.softmax(x.double() * 2.0**step, -1)
    assert ((found - exact).abs().max()) <= 1 / 256  # one step; half of it is rounding


def test_shares_round():
    power = torch.tensor([[1, 1, 1, 1], [2**15, 0, 0, 0], [0, 0, 0, 0]])
    assert shares(power, 8).tolist() == [[64] * 4, [256, 0, 0, 0], [0] * 4]


def exactly(q, k, v, seen, scale):
    scores = q.double() @ k.double().transpose(-2, -1) * scale
    if seen is not None:
        scores = scores.masked_fill(~seen, -math.inf)
    return scores.softmax(-1).nan_to_num(0.0) @ v.double()


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal):
    q, k, v = (whole(-127, 127, 2, 4, 9, 16, dtype=torch.int8) for _ in range(3))
    factor, right, table = exponential(-12, 0.25, "it")
    seen = None if causal else torch.rand(2, 1, 9, 9) > 0.3
    seen_by = torch.ones(9, 9, dtype=torch.bool).tril() if causal else seen
    found = attention(
        q, k, v, seen, causal, [0, 0, 0], factor, right, table, shifts(8), 0, -127, 127, INT8
    )
    exact = exactly(q, k, v, seen_by, 0.25 * 2.0**-12)
    assert ((found.double() - exact).abs() <= 0.5 + 127 * 9 / 512 / 2).all()
    hidden = attention(
        q, k, v, torch.zeros(1, 1, 1, 9, dtype=torch.bool), False, [0, 0, 0], factor, right, table,
        shifts(8), 0, -127, 127, INT8,
    )  # fmt: skip
    assert not hidden.any()


def test_heads_that_share():
    q, k = (whole(-127, 127, 1, n, 5, 8, dtype=torch.int8) for n in (4, 2))
    end = (*exponential(-12, 1.0, "it"), shifts(8), 0, -127, 127, INT8)
    found = attention(q, k, k, None, False, [1, 2, 3], *end)
    wide = k.repeat_interleave(2, 1)
    assert torch.equal(found, attention(q, wide, wide, None, False, [1, 2, 3], *end))
