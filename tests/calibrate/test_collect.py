"""Hooks and statistics: what layers are given, against what torch computes with it."""

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.calibrate.hooks import watch
from blockscale.calibrate.input_stats import SAMPLE, InputStatsCollector
from blockscale.calibrate.layer_rows import rows_of, seen_by
from blockscale.core.layout import to_stored
from blockscale.layers.plan import plan_layers

CONVS = [
    nn.Conv2d(3, 5, 3, padding=1),
    nn.Conv2d(3, 5, (2, 3), stride=(2, 1), dilation=(1, 2)),
    nn.Conv2d(3, 5, 3, padding="same", padding_mode="reflect"),
    nn.Conv2d(3, 5, 2, padding=1, padding_mode="circular"),
    nn.Conv1d(3, 5, 3, padding=2, stride=2, dilation=2),
    nn.Conv1d(3, 5, 3, padding="same", padding_mode="replicate"),
]


def plan_of(layer: nn.Module):
    [plan] = plan_layers(nn.Sequential(layer), bs.Recipe("int8"))
    return plan


@pytest.mark.parametrize("conv", CONVS, ids=str)
@pytest.mark.parametrize("batched", [True, False])
def test_rows_of_a_convolution_give_its_output(conv: nn.Module, batched: bool) -> None:
    """y = rows @ weight.T with the stored weight: torch's own convolution is the oracle."""
    x = torch.randn(2, 3, 7, 9)[..., 0] if isinstance(conv, nn.Conv1d) else torch.randn(2, 3, 7, 9)
    x = x if batched else x[0]
    with torch.no_grad():
        y = conv(x)
        rows = torch.cat(list(rows_of(plan_of(conv), x)))
        found = rows @ to_stored(conv.weight, "channels_last").T + conv.bias
        expected = (y if batched else y[None]).movedim(1, -1).flatten(0, -2)
    torch.testing.assert_close(found, expected)
    assert seen_by(plan_of(conv), x).shape[-1] == 3


def test_rows_of_a_linear_are_its_input() -> None:
    x = torch.randn(2, 3, 4, 8, dtype=torch.bfloat16)
    pieces = list(rows_of(plan_of(nn.Linear(8, 2)), x))
    assert [p.dtype for p in pieces] == [torch.float32]
    assert torch.equal(torch.cat(pieces), x.reshape(-1, 8).float())
    assert len(list(rows_of(plan_of(nn.Linear(8, 2)), torch.ones(5000, 8)))) == 2  # bounded pieces


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


def test_watching_sees_every_call_and_leaves_nothing() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(input=self.a(x))  # also by keyword

    model, seen = Twice(), []
    x = torch.randn(3, 4)
    with watch({model.a: lambda x, y: seen.append((x, y))}):
        y = model(x)
    assert len(seen) == 2
    assert torch.equal(seen[0][0], x)
    assert torch.equal(seen[1][0], seen[0][1])
    assert torch.equal(seen[1][1], y)
    assert not model.a._forward_hooks
    with pytest.raises(KeyboardInterrupt), watch({model.a: lambda x, y: None}):
        raise KeyboardInterrupt
    assert not model.a._forward_hooks


def test_watching_sees_what_the_layer_itself_takes_and_gives() -> None:
    """With a user's hooks: after those on its input, before those on its output."""
    layer, seen = nn.Linear(4, 4), []
    layer.register_forward_pre_hook(lambda m, args: (2 * args[0],))
    layer.register_forward_hook(lambda m, args, y: y + 100)
    x = torch.randn(3, 4)
    with watch({layer: lambda x, y: seen.append((x, y))}):
        y = layer(x)
    assert torch.equal(seen[0][0], 2 * x)
    assert torch.equal(seen[0][1] + 100, y)
