# SPDX-License-Identifier: BSD-3-Clause
"""The demonstration's measurements."""

import math

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.demo import RECIPES, Demo, _energy, _weight_bits, rank_correlation


def test_rank_correlation_is_spearmans():
    assert rank_correlation(torch.randn(9, 5), torch.randn(9, 5)) < 0.9
    b = torch.randn(9, 5)
    assert rank_correlation(b, b) == pytest.approx(1.0)


def test_the_correlation_is_of_ranks():
    """Any rising function of the similarities leaves it 1."""
    a = torch.eye(3)[[0, 0, 1, 2]] + torch.tensor([0.0, 0.1, 0.3, 0.7])[:, None]
    assert rank_correlation(a, 3 * a) == pytest.approx(1.0)
    assert rank_correlation(a, a[[3, 2, 1, 0]]) < 1.0


def test_bits_are_those_that_are_stored():
    model = nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 64))
    bs.quantize_(model, bs.Recipe("mxfp4"))
    assert _weight_bits(model) == 4.25


@pytest.fixture(scope="module")
def demo():
    return Demo()


def test_a_row(demo):
    """mxint8 is so near to float that each figure has a narrow place."""
    row = demo.measure("mxint8", RECIPES["mxint8"])
    assert row.name == "mxint8"
    assert row.bits_per_weight == pytest.approx(8.25, abs=0.01)
    assert row.file_bytes == pytest.approx(demo.float_row.file_bytes * 8.25 / 32, rel=0.02)
    assert 40 < row.sqnr < 43
    assert 0.999 < row.cosine_min <= row.cosine_mean < 1
    assert 0.999 < row.rank_correlation < 1
    assert row.quantize_seconds > 0 and row.embed_seconds > 0


def test_the_float_row(demo):
    row = demo.float_row
    assert (row.bits_per_weight, row.sqnr, row.cosine_min) == (32.0, math.inf, 1.0)
    assert 90_800_000 < row.file_bytes < 91_000_000  # README: 90.9 MB


def test_energy_is_summed_in_float64():
    x = torch.full((3 * 2**20,), 0.1)  # in float32 a sum of 3 million terms is 1e-6 off, or more
    assert _energy(x) == pytest.approx(3 * 2**20 * float(x[0]) ** 2, rel=1e-9)
