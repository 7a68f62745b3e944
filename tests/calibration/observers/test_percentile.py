# SPDX-License-Identifier: BSD-3-Clause
"""Percentiles: numpy's on small data, within a bin of numpy's on large."""

import numpy as np
import pytest
import torch

import blockscale as bs
from blockscale.calibration.histogram import CAPACITY

SYMMETRIC, UNSIGNED, ASYM = "int8:{}:fp32", "uint8:{}:fp32", "uint8:{}:fp32:asym"


def expected(x, percentile, fmt):
    """The range of one block's values in float64, from what the percentile is to mean."""
    x = np.asarray(x, np.float64)
    tail = 100 - percentile
    if fmt == ASYM:
        return min(np.percentile(x, tail / 2), 0), max(np.percentile(x, 100 - tail / 2), 0)
    if fmt == UNSIGNED:
        return min(x.min(), 0), max(np.percentile(x, percentile), 0)
    threshold = np.percentile(np.abs(x), percentile)
    return max(min(x.min(), 0), -threshold), min(max(x.max(), 0), threshold)


def seeing(fmt, percentile, *batches):
    observer = bs.observers.make(f"percentile:{percentile}", fmt)
    for batch in batches:
        observer.observe(batch)
    return observer


@pytest.mark.some(3)
@pytest.mark.parametrize("fmt", [SYMMETRIC, UNSIGNED, ASYM])
@pytest.mark.parametrize("percentile", [1, 50, 99, 99.9, 100])
def test_small_data_is_numpy_s(fmt, percentile):
    generator = torch.Generator().manual_seed(3)
    for n in (1, 2, 7, 1000):
        x = torch.randn(n, 1, generator=generator).double().float() + 0.3
        low, high, _ = seeing(fmt.format("tensor"), percentile, x[: n // 2], x[n // 2 :]).range()
        found = np.array([low.item(), high.item()])
        np.testing.assert_array_max_ulp(
            found.astype(np.float32), np.float32(expected(x, percentile, fmt)), 1
        )


@pytest.mark.parametrize("fmt", [SYMMETRIC, ASYM])
def test_each_block_has_its_own(fmt):
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(101, 6, generator=generator) * torch.tensor([1e-9, 1, 3, 1e9, -1, 0])
    x[5, 1] = torch.nan
    low, high, _ = seeing(fmt.format("channel-1"), 90, x[:7], x[7:]).range()
    for i in range(6):
        column = x[:, i][x[:, i].isfinite()]
        want = expected(column, 90, fmt)
        np.testing.assert_allclose([low[0, i], high[0, i]], want, rtol=1e-6)


@pytest.mark.parametrize("fmt", [SYMMETRIC, UNSIGNED, ASYM])
@pytest.mark.parametrize("percentile", [10, 99, 99.99])
def test_large_data_is_within_a_bin(fmt, percentile):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(CAPACITY + 1, 1, generator=generator) ** 3
    observer = seeing(fmt.format("tensor"), percentile, x[:CAPACITY])
    assert observer.kept.numel() == CAPACITY
    observer.observe(x[CAPACITY:])
    assert observer.kept.numel() == observer.owner.numel() == 0
    low, high, _ = observer.range()
    want = expected(x, percentile, fmt)
    np.testing.assert_allclose(
        [low.item(), high.item()], want, rtol=2**-8, atol=2**-15 * x.abs().max()
    )


def test_a_hundred_percent_is_min_max_on_large_data_too():
    x = torch.randn(CAPACITY + 1, generator=torch.Generator().manual_seed(6))
    for fmt in (SYMMETRIC, UNSIGNED, ASYM):
        low, high, _ = seeing(fmt.format("tensor"), 100, x).range()
        assert high.item() == x.max()
        assert low.item() == max(x.min(), -np.inf if fmt != SYMMETRIC else -x.abs().max())


def test_merging_past_the_capacity_drops_the_kept():
    x = torch.randn(CAPACITY, 1, generator=torch.Generator().manual_seed(7))
    a, b = (seeing("int8", 99, half) for half in (x, x[:1]))
    assert a.merge_(b).kept.numel() == 0
    whole = seeing("int8", 99, x, x[:1])
    assert a.range().high == whole.range().high
