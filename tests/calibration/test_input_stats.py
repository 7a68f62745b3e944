# SPDX-License-Identifier: BSD-3-Clause
"""What is known of a layer's inputs is that of all rows, whatever the batches."""

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.calibration.input_stats import (
    SAMPLE,
    DriftCollector,
    InputStatsCollector,
    rows_of,
    seen_by,
    watch,
)
from blockscale.core.pack import to_stored
from blockscale.layers.plan import plan_layers


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
    assert stats.gram is not None
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
    own, other = plain.result().gram, autocast.result().gram
    assert own is not None and other is not None and torch.equal(own, other)


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
    with pytest.raises(ValueError, match=r"rows of 6 features in both models, found \(50, 5\)"):
        gathered.add(seen[:, :5], wanted[:, :5])


# The rows of a layer's input are what its stored weight is multiplied with.

CONVS = [
    nn.Conv2d(3, 5, 3, padding=1),
    nn.Conv2d(3, 5, (2, 3), stride=(2, 1), dilation=(1, 2)),
    nn.Conv2d(3, 5, 3, padding="same", padding_mode="reflect"),
    nn.Conv2d(3, 5, 2, padding=1, padding_mode="circular"),
    nn.Conv1d(3, 5, 3, padding=2, stride=2, dilation=2),
    nn.Conv1d(3, 5, 3, padding="same", padding_mode="replicate"),
    nn.Conv3d(3, 5, (2, 3, 1), stride=(1, 2, 2), padding=(1, 0, 1), dilation=(2, 1, 1)),
    nn.Conv3d(3, 5, 3, padding="same", padding_mode="circular"),
]
TRANSPOSED = [
    nn.ConvTranspose1d(3, 5, 3),
    nn.ConvTranspose1d(3, 5, 4, stride=3, padding=2, output_padding=1),
    nn.ConvTranspose2d(3, 5, (3, 2), stride=(2, 1), dilation=(1, 3), padding=(1, 2)),
    nn.ConvTranspose2d(3, 5, 1, stride=2, padding=1, output_padding=1),  # padding beyond the kernel
    nn.ConvTranspose3d(3, 5, (2, 1, 3), stride=2, output_padding=(1, 0, 1)),
]


def image(conv: nn.Module) -> torch.Tensor:
    return torch.randn(2, 3, 7, 9, 5)[(..., *(0,) * (5 - conv.weight.ndim))]


def plan_of(layer: nn.Module):
    [plan] = plan_layers(nn.Sequential(layer), bs.Recipe("int8"))
    return plan


@pytest.mark.parametrize("conv", CONVS, ids=str)
@pytest.mark.parametrize("batched", [True, False])
def test_rows_of_a_convolution_give_its_output(conv: nn.Module, batched: bool) -> None:
    """y = rows @ weight.T with the stored weight: torch's own convolution is the oracle."""
    x = image(conv) if batched else image(conv)[0]
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


@pytest.mark.parametrize("conv", TRANSPOSED, ids=str)
@pytest.mark.parametrize("batched", [True, False])
def test_rows_of_a_transposed_convolution_give_its_output(conv: nn.Module, batched: bool) -> None:
    """Of the size that it has by itself, and of the largest that can be asked for."""
    x, plan = image(conv) if batched else image(conv)[0], plan_of(conv)
    with torch.no_grad():
        usual, dims = conv(x), len(conv.kernel_size)
        parts = zip(usual.shape[-dims:], conv.stride, conv.output_padding, strict=True)
        largest = conv(x, [n + s - 1 - p for n, s, p in parts])
        for y, rows in (
            (usual, rows_of(plan, x)),
            (largest, rows_of(plan, x, None, largest.shape)),
        ):
            found = torch.cat(list(rows)) @ to_stored(conv.weight, plan.layout).T + conv.bias
            expected = (y if batched else y[None]).movedim(1, -1).flatten(0, -2)
            torch.testing.assert_close(found, expected)
    assert seen_by(plan, x).shape[-1] == 3
    assert seen_by(plan, usual).shape[-1] == 5


def test_what_a_transform_gives_is_what_reaches_the_outputs() -> None:
    """Zeros that a stride leaves stay zeros: they come between after the transform."""
    conv, x = nn.ConvTranspose1d(3, 5, 3, stride=2), torch.randn(2, 3, 4)

    class AddOne(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x.shape[-1] == 3
            return x + 1

    for batched in (x, x[0]):
        rows = torch.cat(list(rows_of(plan_of(conv), batched, AddOne())))
        assert torch.equal(rows, torch.cat(list(rows_of(plan_of(conv), batched + 1))))


# Watching sees every call of a module, and leaves nothing.


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
