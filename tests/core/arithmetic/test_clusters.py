# SPDX-License-Identifier: BSD-3-Clause
"""k-means in one dimension: the least error there is, by exhaustion in exact rationals."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from blockscale.core.arithmetic import clusters
from blockscale.core.arithmetic.clusters import POINTS, learn


def error(y: Tensor, table: Tensor) -> float:
    """The squared error of the nearest values."""
    return float((y.double()[:, None] - table.double()).square().amin(1).sum())


def least(y: Tensor, count: int) -> float:
    """The least squared error of all ways to cut the sorted numbers."""
    values = sorted(map(Fraction, y.tolist()))
    found = []
    for inside in itertools.combinations(range(1, len(values)), min(count, len(values)) - 1):
        parts = [values[a:b] for a, b in itertools.pairwise((0, *inside, len(values)))]
        means = [sum(part) / len(part) for part in parts]
        found.append(sum((v - m) ** 2 for p, m in zip(parts, means, strict=True) for v in p))
    return float(min(found))


@pytest.mark.some(2)
@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 11])
def test_the_optimum_of_few_numbers(size: int, count: int) -> None:
    for seed in range(8):
        y = torch.randn(size, generator=torch.Generator().manual_seed(seed))
        if seed % 2:
            y = (y * 2).round() / 2  # equal numbers, and equal errors
        y = y / y.abs().max().clamp(min=1e-3)
        table = learn(y, count)
        assert table.shape == (count,) and bool((table.diff() >= 0).all())
        assert error(y, table) <= least(y, count) + 1e-9


def test_a_worse_cut_is_seen() -> None:
    y = torch.tensor([-1.0, -0.9, 0.0, 0.1, 0.9, 1.0])
    assert error(y, torch.tensor([-0.95, 0.05, 0.5, 0.95])) > least(y, 4) + 1e-4


def test_with_few_distinct_numbers_the_table_has_them() -> None:
    y = torch.tensor([0.5, -1.0, 0.5, 0.25])
    assert learn(y, 8).tolist() == [-1.0, 0.25, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]
    assert learn(torch.zeros(9), 4).tolist() == [0.0] * 4


@pytest.mark.parametrize("y", [torch.zeros(0), torch.tensor([math.nan, math.inf])], ids=str)
def test_without_numbers_even_steps(y: Tensor) -> None:
    assert learn(y, 4).tolist() == [-1.0, float(np.float32(-1 / 3)), float(np.float32(1 / 3)), 1.0]


def test_what_is_not_finite_and_what_is_far() -> None:
    y = torch.tensor([-1.0, math.nan, 1.0, math.inf, -math.inf])
    assert learn(y, 2).tolist() == [-1.0, 1.0]
    assert learn(torch.tensor([1e30, -1e30]), 2).tolist() == [-8.0, 8.0]


@pytest.mark.slow
def test_order_changes_no_bit() -> None:
    y = torch.randn(50_000) / 4
    table = learn(y, 16)
    for _ in range(3):
        assert torch.equal(learn(y[torch.randperm(len(y))].reshape(500, 100), 16), table)


@pytest.mark.some(5)
@pytest.mark.parametrize("count", [2, 16, 256])
def test_many_numbers_end_no_worse_than_their_histogram(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    y = torch.randn(40_000)
    y /= y.abs().max()
    assert y.unique().numel() > POINTS
    errors = [error(y, learn(y, count))]
    monkeypatch.setattr(clusters, "ROUNDS", 0)
    errors.append(error(y, learn(y, count)))  # the best for bins, which Lloyd began from
    even = error(y, torch.linspace(-1, 1, count))
    assert errors[0] <= errors[1] * (1 + 1e-12) < even
    monkeypatch.setattr(clusters, "POINTS", 10**9)  # exactly, by dynamic programming alone
    if count == 16:
        assert errors[0] <= 1.001 * error(y, learn(y, count))


def test_middles_are_a_fixed_point() -> None:
    """Each value is the mean of the numbers that are nearest to it."""
    y = torch.randn(20_000) / 5
    table = learn(y, 16).double()
    nearest = (y.double()[:, None] - table).abs().argmin(1)
    means = torch.stack([y.double()[nearest == code].mean() for code in range(16)])
    assert (means - table).abs().max() < 1e-7
