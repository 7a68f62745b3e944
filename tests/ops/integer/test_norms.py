# SPDX-License-Identifier: BSD-3-Clause
"""Layer norms of integers: exact pieces, and the stated error against float64."""

import math

import pytest
import torch
import torch.nn.functional as F

from blockscale.ops.integer.norms import (
    FRACTION,
    bit_length,
    layer_norm,
    normalized,
    square_root,
)
from tests.support.integer_oracle import shifts, whole

WIDE = "int16:tensor:pow2/nearest"


def test_square_root_and_length():
    values = [0, 1, 2, 3, 4, 2**62 - 1, 2**61, (2**31 - 1) ** 2, (2**31 - 1) ** 2 - 1]
    values += torch.randint(0, 2**62 - 1, (200,)).tolist()
    x = torch.tensor(values)
    assert square_root(x).tolist() == [math.isqrt(v) for v in values]
    assert bit_length(x).tolist() == [v.bit_length() for v in values]


@pytest.mark.some(3)
@pytest.mark.parametrize("n", [1, 2, 7, 384, 4096])
@pytest.mark.parametrize("top", [1, 127, 32767])
def test_normalized_within_a_unit(n, top):
    """The largest error stated in docs/integers.md: one unit of 2^-15 and 2^-28 of the value."""
    x = whole(-top, top, 50, n, dtype=torch.int64)
    x[0], x[1] = 0, top  # no variance at all
    x[2, :], x[2, 0] = -top, top  # the largest value there can be
    for centered in (True, False):
        found = normalized(x, centered, n * n).double() * 2.0**-FRACTION
        wide = x.double()
        away = wide - wide.mean(-1, keepdim=True) if centered else wide
        exact = away / (away.square().mean(-1, keepdim=True) + 1).sqrt()
        assert ((found - exact).abs() <= 2.0**-FRACTION + exact.abs() * 2.0**-28).all()


def test_weight_and_bias():
    x = whole(-127, 127, 20, 64, dtype=torch.int8)
    weight, bias = torch.randn(64), torch.randn(64)
    w, b = (weight * 2**12).round().int(), (bias * 2.0**27).round().long()
    found = layer_norm(x, w, b, 5, True, 3 * 64 * 64, shifts(27 - 11), 0, -32767, 32767, WIDE)
    exact = F.layer_norm(x.double() - 5, [64], w.double() / 2**12, b.double() / 2**27, 3.0)
    assert ((found.double() / 2**11 - exact).abs() <= 2.0**-12 + 2.0**-14 * 8).all()
