# SPDX-License-Identifier: BSD-3-Clause
"""Samples of several processes, here of a group of one; test_ranks.py has groups of more."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from blockscale.calibration.algorithms.learned.dealt import DealtSamples, _summed
from blockscale.calibration.algorithms.learned.samples import Sample, Samples
from blockscale.calibration.block_calls import BlockCall
from blockscale.calibration.ranks import Ranks

SIZES = (3, 1, 2)


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/one", rank=0, world_size=1)
    yield Ranks(dist.group.WORLD)
    dist.destroy_process_group()


def calls_of() -> tuple[list[BlockCall], list[Tensor]]:
    draw = torch.Generator().manual_seed(0)
    calls = [BlockCall((torch.randn(n, 4, 8, generator=draw),), {}) for n in SIZES]
    return calls, [2 * call.args[0] for call in calls]


def together(call: BlockCall) -> Tensor:
    x: Tensor = call.args[0]
    return x * 2


def mixed(call: BlockCall) -> Tensor:
    x: Tensor = call.args[0]
    return x * 2 + x.mean(0)


def test_rows_and_positions_are_those_of_samples(ranks: Ranks) -> None:
    calls, targets = calls_of()
    dealt = DealtSamples(calls, targets, together, ranks)
    plain = Samples(calls, targets, together)
    assert dealt.rows == plain.rows
    assert [*map(dealt.positions, dealt.rows)] == [*map(plain.positions, plain.rows)]
    chosen = [(2, 1), (0, 2), (0, 0)]
    parts = list(dealt.own(chosen))
    assert [i for i, _ in parts] == [0, 2]  # by call, not as they were drawn
    assert torch.equal(parts[0][1].target, targets[0][[0, 2]])
    assert torch.equal(parts[1][1].call.args[0], calls[2].args[0][1:])
    found = dealt.sum_of(lambda part: float(part.target.sum()), chosen)
    assert found == pytest.approx(plain.sum_of(lambda part: float(part.target.sum()), chosen))


def test_a_block_that_mixes_its_rows_is_given_whole_calls(ranks: Ranks) -> None:
    calls, targets = calls_of()
    dealt = DealtSamples(calls, targets, mixed, ranks)
    assert dealt.rows == [(0, 0), (1, 0), (2, 0)]
    assert [dealt.positions(row) for row in dealt.rows] == [12, 4, 8]
    assert all(part.call is calls[i] for i, part in dealt.own(dealt.rows))


def test_gradients_are_those_of_the_sum(ranks: Ranks) -> None:
    """One that no call reaches has none."""
    calls, targets = calls_of()
    dealt = DealtSamples(calls, targets, together, ranks)
    plain = Samples(calls, targets, together)
    rows = [(0, 0), (1, 0), (2, 1)]
    gradients = []
    for samples in (dealt, plain):
        values = {n: torch.ones(s, requires_grad=True) for n, s in (("a", 8), ("b", 3), ("c", 4))}

        def error(part: Sample, values: dict[str, Tensor] = values) -> Tensor:
            away = part.call.args[0] * values["a"] * values["c"][:, None] - part.target
            return away.square().sum()

        samples.descend(error, rows, values)
        gradients.append({name: value.grad for name, value in values.items()})
    assert gradients[0]["b"] is None and gradients[1]["b"] is None
    for name in "ac":
        assert torch.allclose(gradients[0][name], gradients[1][name], rtol=1e-5)  # type: ignore[arg-type]


class FirstOfTwo:
    """The first of two processes, which has calls 0 and 2; the other one's call has gradient 1."""

    rank, size, device = 0, 2, torch.device("cpu")

    def swap(self, parcels: list[Tensor], sizes: list[int]) -> list[Tensor]:
        assert sizes == [2 * 4, 1 * 4]
        return [parcels[0], torch.ones(1).view(torch.uint8)]

    def join_parts(self, total: Tensor) -> Tensor:
        return torch.cat([total, total])


def test_gradients_are_added_in_the_order_of_the_calls() -> None:
    """1e8 + 1 - 1e8 is 0 in float32, and 1e8 - 1e8 + 1 is 1."""
    flat = {0: torch.tensor([1e8, 0.0]), 2: torch.tensor([-1e8, 0.0])}
    total = _summed(flat, [0, 1, 2], 2, FirstOfTwo())  # type: ignore[arg-type]
    assert total.tolist() == [0.0, 0.0]
