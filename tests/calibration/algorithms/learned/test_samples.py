# SPDX-License-Identifier: BSD-3-Clause
"""Rows of calls: together they are the calls, and none comes twice before all have come."""

import itertools

import pytest
import torch
from torch import Tensor

from blockscale.calibration.algorithms.learned import samples as samples_module
from blockscale.calibration.algorithms.learned.samples import Samples
from blockscale.calibration.block_calls import BlockCall


def double(call: BlockCall) -> Tensor:
    x = call.args[0] * 2
    for name in ("mask", "shift"):
        if name in call.kwargs:
            x = x + call.kwargs[name]
    return x


def samples_of(calls: list[BlockCall], run: object = double) -> Samples:
    return Samples(calls, [run(call) for call in calls], run)  # type: ignore[operator]


def numbered(*rows: int, places: int = 3) -> list[BlockCall]:
    starts = itertools.accumulate((0, *rows))
    return [
        BlockCall((torch.arange(float(s), s + n)[:, None, None].expand(n, places, 2).clone(),), {})
        for s, n in zip(starts, rows, strict=False)
    ]


def test_every_row_comes_once_before_one_comes_twice() -> None:
    samples = samples_of(numbered(4, 1, 3))
    seen: list[float] = []
    for rows in itertools.islice(samples.batches(6, seed=3), 8):
        for part in samples.parts(rows):
            assert torch.equal(double(part.call), part.target)
            seen += (part.target[:, 0, 0] / 2).tolist()
    assert sorted(seen[:8]) == sorted(seen[8:]) == list(range(8))
    assert seen[:8] != seen[8:]


def test_rows_of_several_calls_are_one_call() -> None:
    samples = samples_of(numbered(2, 2, 2))
    (part,) = samples.parts([(0, 1), (2, 0), (2, 1)])
    assert part.call.args[0][:, 0, 0].tolist() == [1, 4, 5]


def test_other_lengths_are_run_by_themselves() -> None:
    calls = [*numbered(2), *numbered(2, places=5)]
    samples = samples_of(calls)
    assert [len(part.target) for part in samples.parts([(0, 0), (1, 1), (0, 1)])] == [2, 1]


def test_shared_tensors_stay_and_those_of_rows_go_along() -> None:
    shared = torch.ones(1, 3, 2)
    calls = [
        BlockCall(c.args, {"mask": shared, "shift": c.args[0].clone()}) for c in numbered(3, 3)
    ]
    samples = samples_of(calls)
    (part,) = samples.parts([(0, 2), (1, 0)])
    assert part.call.kwargs["mask"] is shared
    assert part.call.kwargs["shift"][:, 0, 0].tolist() == [2, 3]
    assert torch.equal(double(part.call), part.target)


def test_a_block_that_mixes_its_rows_gets_whole_calls() -> None:
    def centred(call: BlockCall) -> Tensor:
        return call.args[0] - call.args[0].mean(0)

    calls = numbered(4, 4)
    samples = samples_of(calls, centred)
    rows = next(samples.batches(1, seed=0))
    for part in samples.parts(rows):
        assert torch.equal(centred(part.call), part.target) and len(part.target) == 4


def test_the_same_seed_draws_the_same() -> None:
    samples = samples_of(numbered(8))
    first, second, third = (next(samples.batches(9, seed)) for seed in (5, 5, 6))
    assert first == second != third


def test_a_target_without_rows_is_one_sample() -> None:
    calls = [BlockCall((torch.ones(4),), {}), BlockCall((torch.zeros(4),), {})]
    samples = samples_of(calls)
    assert len(samples.rows) == 2
    for part in samples.parts(samples.rows):
        assert torch.equal(double(part.call), part.target)


def test_calls_put_together_once_give_what_they_give_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared = torch.ones(1, 3, 2)
    calls = [
        BlockCall(c.args, {"mask": shared, "shift": c.args[0].clone()}) for c in numbered(3, 1, 2)
    ]
    held = samples_of(calls)
    monkeypatch.setattr(samples_module, "_HELD", 0)
    apart = samples_of(calls)
    assert held._cache is not None and apart._cache is None
    for rows in ([(0, 2), (2, 0)], [(2, 1), (0, 1), (1, 0), (0, 0), (0, 2)], held.rows):
        (one,), (other,) = held.parts(rows), apart.parts(rows)
        assert torch.equal(one.target, other.target)
        assert torch.equal(one.call.args[0], other.call.args[0])
        assert torch.equal(one.call.kwargs["shift"], other.call.kwargs["shift"])
        assert one.call.kwargs["mask"] is other.call.kwargs["mask"] is shared
