"""What is known of a layer's inputs is that of all rows, whatever the batches."""

import pytest
import torch

from blockscale.calibrate.input_stats import SAMPLE, InputStatsCollector


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
