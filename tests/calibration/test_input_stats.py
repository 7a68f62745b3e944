# SPDX-License-Identifier: BSD-3-Clause
"""What is known of a layer's inputs is that of all rows, whatever the batches."""

import pytest
import torch

from blockscale.calibration.input_stats import (
    SAMPLE,
    DriftCollector,
    GramCollector,
    InputStatsCollector,
    product_of,
)


def test_statistics_are_those_of_all_rows() -> None:
    torch.manual_seed(0)
    x = torch.randn(1000, 6) * torch.tensor([1, 10, 0.1, 1, 0, 3.0])
    gathered = InputStatsCollector(6, torch.device("cpu"))
    for piece in x.split([1, 300, 0, 699]):
        gathered.add(piece)
    stats, wide = gathered.result(), x.double()
    assert stats.rows == 1000
    assert torch.equal(stats.amax, x.abs().amax(0))
    torch.testing.assert_close(stats.mean_abs.double(), wide.abs().mean(0), rtol=1e-6, atol=0)
    torch.testing.assert_close(stats.gram, wide.T @ wide / 1000, rtol=1e-5, atol=1e-5)
    assert stats.gram.dtype == torch.float64
    assert stats.sample.shape == (SAMPLE, 6)
    for row in stats.sample:
        assert (x == row).all(1).any()


def test_the_sample_is_of_all_rows_alike() -> None:
    """Each row is as likely: the mean index of 256 rows out of 20000 is near the middle."""
    gathered = InputStatsCollector(1, torch.device("cpu"))
    for piece in torch.arange(20000.0)[:, None].split(700):
        gathered.add(piece)
    sample = gathered.result().sample[:, 0]
    assert len(sample.unique()) == SAMPLE
    # the mean of 256 uniform numbers has a deviation of 20000 / sqrt(12 * 256) = 361
    assert abs(float(sample.mean()) - 10000) < 4 * 361
    few = InputStatsCollector(1, torch.device("cpu"))
    few.add(torch.arange(5.0)[:, None])
    assert few.result().sample[:, 0].tolist() == [0, 1, 2, 3, 4]


def test_rows_that_are_not_finite_are_left_out_and_counted() -> None:
    x = torch.randn(6, 3)
    x[1, 2], x[4, 0] = torch.nan, -torch.inf
    gathered = InputStatsCollector(3, torch.device("cpu"))
    gathered.add(x)
    stats, kept = gathered.result(), x[[0, 2, 3, 5]]
    assert (stats.rows, stats.skipped) == (4, 2)
    assert torch.equal(stats.amax, kept.abs().amax(0))
    assert torch.equal(stats.sample, kept)
    empty = InputStatsCollector(3, torch.device("cpu"))
    empty.add(torch.full((2, 3), torch.nan))
    with pytest.raises(ValueError, match="saw no data"):
        empty.result()


def test_statistics_are_float32_under_autocast() -> None:
    x = torch.randn(64, 8)
    plain, autocast = (InputStatsCollector(8, torch.device("cpu")) for _ in range(2))
    plain.add(x)
    with torch.autocast("cpu", torch.bfloat16):
        autocast.add(x)
    assert torch.equal(plain.result().gram, autocast.result().gram)


def test_the_drift_is_that_of_all_rows() -> None:
    seen, wanted = torch.randn(50, 6), torch.randn(50, 6)
    gathered = DriftCollector(6, torch.device("cpu"))
    assert gathered.result() is None
    odd = torch.full((1, 6), torch.nan), torch.zeros(1, 6)
    for x, y in ((seen[:20], wanted[:20]), odd, odd[::-1], (seen[20:], wanted[20:])):
        gathered.add(x, y)
    expected = seen.double().T @ (wanted - seen).double() / 50
    assert (gathered.rows, gathered.skipped) == (50, 2)
    torch.testing.assert_close(gathered.result(), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match=r"rows of 6 inputs in both models, found \(50, 5\)"):
        gathered.add(seen[:, :5], wanted[:, :5])


@pytest.mark.parametrize("k", [1, 8, 511, 512, 700])
def test_a_gram_is_that_of_all_finite_rows(k: int) -> None:
    """Wide ones are computed in strips on one side of the diagonal."""
    torch.manual_seed(k)
    x = torch.randn(90, k)
    odd = torch.cat([x[:40], torch.full((1, k), torch.inf), x[40:]])
    odd[40, 1:] = torch.nan
    gathered = GramCollector(k, torch.device("cpu"))
    with pytest.raises(ValueError, match="saw no data"):
        gathered.result()
    for piece in odd.split([30, 0, 61]):
        gathered.add(product_of(piece))
    assert (gathered.rows, gathered.skipped) == (90, 1)
    gram = gathered.result()
    torch.testing.assert_close(gram, x.double().T @ x.double() / 90, rtol=1e-5, atol=1e-5)
    assert gram.dtype == torch.float64
    assert torch.equal(gram, gram.T) or k < 512  # strips are written on both sides


def test_a_product_that_overflows_keeps_its_rows() -> None:
    found = product_of(torch.tensor([[1e30, 1.0], [2.0, 1.0]]))
    assert (found.rows, found.skipped) == (2, 0) and found.sum[0, 0] == torch.inf
