# SPDX-License-Identifier: BSD-3-Clause
"""Gram matrices are those of all rows, whole and in strips, to the bit; of several processes:
tests/calibration/test_ranks.py."""

import weakref

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.calibration.dealing import Effort
from blockscale.calibration.input_stats import watch
from blockscale.calibration.session import Session
from blockscale.calibration.weighing import (
    GramCollector,
    GramSums,
    LastProducts,
    columns_of,
    effort_of_gram,
    product_of,
    size_of,
    strips_of,
    whole_of,
)
from blockscale.layers.plan import Plan, plan_layers


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


@pytest.mark.parametrize("k", [1, 511, 512, 700])
def test_strips_are_those_of_the_whole(k: int) -> None:
    """To the bit, whoever has which of them; an odd row is left out by all, of whichever strip."""
    torch.manual_seed(k)
    rows = torch.randn(61, k)
    rows[7, -1] = torch.nan
    rows[9] *= 1e30  # the diagonal overflows
    rows[20] = rows[19]
    strips, cpu = strips_of(k, torch.device("cpu")), torch.device("cpu")
    assert [(s.start, s.stop) for s in strips] == {
        1: [(0, 1)], 511: [(0, 511)], 512: [(0, 256), (256, 512)],
        700: [(0, 256), (256, 512), (512, 700)],
    }[k]  # fmt: skip
    whole = GramCollector(k, cpu)
    own = [GramCollector(k, cpu, some) for some in (strips[::2], strips[1::2]) if some]
    for piece in rows.split(30):
        for each in (whole, *own):
            each.add(product_of(piece, each.strips))
    parts = [(each.strips, each.sum) for each in own]
    assert torch.equal(whole_of(parts, k), whole.sum)
    assert sum(size_of(each.strips, k) for each in own) == size_of(strips, k)
    for each in own:
        assert (each.rows, each.skipped) == (whole.rows, whole.skipped) == (60, 1)
    assert own[0].neighbours is not None and whole.neighbours is not None
    assert torch.equal(own[0].neighbours.directions, whole.neighbours.directions)
    assert all(each.neighbours is None for each in own[1:])


def test_strips_of_the_last_input_are_made_once() -> None:
    """Of the same strips, as long as nobody writes into it."""
    x, last, calls = torch.randn(5, 512), LastProducts(), []

    def rows() -> list[torch.Tensor]:
        calls.append(1)
        return [x]

    first, second = strips_of(512, x.device)
    (one,), (same,) = last.of(x, "any", rows, [first]), last.of(x, "any", rows, [first])
    assert same is one and len(calls) == 1
    (other,) = last.of(x, "any", rows, [second])
    assert len(calls) == 2 and other.sum.shape == (256 * 256,)


class Net(nn.Module):
    """Layers side by side, a convolution, and a layer that nothing reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.unused = nn.Linear(22, 4), nn.Linear(22, 6), nn.Linear(22, 2)
        self.conv = nn.Conv1d(5, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x).sum() + self.b(x).sum() + self.conv(x[:, :20].reshape(-1, 5, 4)).sum()


def test_grams_are_those_of_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockscale.calibration.weighing._STRIP", 4)
    net, rows = Net(), [torch.randn(n, 22) for n in (7, 3)]
    session = Session(net, plan_layers(net, bs.Recipe("int4:channel0:fp32")), None, strict=False)
    weighing = session.gram_sums(session.layers)
    assert isinstance(weighing, GramSums)
    with torch.no_grad(), watch({p.module: weighing.callbacks[p.name] for p in session.layers}):
        for x in rows:
            net(x)
    grams = session.finish_grams(weighing)
    every = torch.cat(rows).double()
    seen = every[:, :20].reshape(-1, 5, 4).unfold(2, 2, 1).permute(0, 2, 3, 1).reshape(-1, 10)
    torch.testing.assert_close(grams["a"], every.T @ every / 10, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(grams["conv"], seen.T @ seen / 30, rtol=1e-5, atol=1e-5)
    assert torch.equal(grams["a"], grams["b"]) and torch.equal(grams["a"], grams["a"].T)
    assert "unused" not in grams and weighing.own["unused"].rows == 0
    own, callbacks = weakref.ref(weighing.own["a"]), weighing.callbacks
    del weighing
    assert own() is not None
    callbacks.clear()
    assert own() is None  # sums of the square of a width go at once


def test_columns_that_are_neighbours_have_one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first strip, which is the largest, and the last together have as much as the second and
    the last but one."""
    monkeypatch.setattr("blockscale.calibration.weighing._STRIP", 16)
    (plan,) = plan_layers(nn.Sequential(nn.Linear(100, 8)), bs.Recipe("int4:group4:fp32"))
    assert isinstance(plan, Plan)
    every = columns_of(plan)
    assert [strip.start for strip in every] == [0, 96, 16, 80, 32, 64, 48]
    sizes = [(strip.stop - strip.start) * (100 - strip.start) for strip in every]
    assert sum(sizes[:4]) / sum(sizes) == pytest.approx(4 / 7, abs=0.01)
    assert effort_of_gram(plan) == Effort(0.0, 100**2 / 7, 7)
