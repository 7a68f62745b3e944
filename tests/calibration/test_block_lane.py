# SPDX-License-Identifier: BSD-3-Clause
"""Calls of blocks over all batches: kept, replayed, compared."""

from typing import Any

import pytest
import torch

from blockscale.calibration.block_calls import TensorStore
from blockscale.calibration.block_record import record, run_around
from blockscale.calibration.find_blocks import NotWalkableError
from tests.calibration.walk.networks import CALLS, decoder, ids
from tests.support.blocks_lane import lane_of, walk


@pytest.mark.parametrize("budget", [2e9, 0])
def test_replayed_blocks_give_what_the_model_gives(budget: float) -> None:
    model, batches = decoder(4), ids()
    given: list[Any] = []
    with torch.no_grad(), TensorStore(budget) as kept:
        lane = lane_of(model, kept)
        assert walk(lane) == [[0], [1, 2, 3]]
        assert sum(CALLS.values()) == 4 * 3 + 1  # one to compare
        model.layers[3].register_forward_hook(lambda m, a, y: given.append(y[0]))
        for batch in batches:
            model(batch)
        for b, y in enumerate(given):
            assert torch.equal(lane.target(3, b), y)
        assert sorted({key.block for key in lane._shapes}) == [3]  # the others are dropped


def test_equal_masks_are_kept_once() -> None:
    model = decoder(3)
    with torch.no_grad(), TensorStore(2e9) as kept:
        lane = lane_of(model, kept)
        record(lane)
        masks = {id(lane.call_of(0, b).kwargs["mask"]) for b in range(3)}
        assert len(masks) == 1
        inputs = [lane.call_of(0, b).args[0] for b in (0, 0)]
        assert inputs[0] is not inputs[1]  # a block may write into it


def test_a_block_that_changes_its_input_in_place() -> None:
    model, batches = decoder(3), ids()
    for layer in model.layers:
        layer.forward = lambda x, mask, layer=layer: (x.add_(layer.feed(x)), None)
    with torch.no_grad(), TensorStore(2e9) as kept:
        lane = lane_of(model, kept)
        walk(lane)
        x = model.table(batches[1])
        for layer in model.layers:
            x = layer(x, mask=None)[0]
        assert torch.equal(lane.target(2, 1), x)


def test_a_block_that_changes_what_is_shared() -> None:
    model = decoder(2)
    model.layers[0].forward = lambda x, mask: (x, mask.logical_not_())
    with torch.no_grad(), TensorStore(2e9) as kept:
        lane = lane_of(model, kept)
        record(lane)
        with pytest.raises(NotWalkableError, match=r"layers\.0 changes a shared argument in place"):
            lane.run(0, keep=True)


def test_a_random_block_is_found_out() -> None:
    model = decoder(2)
    model.layers[0].forward = lambda x, mask: (x + torch.rand(()), None)
    with torch.no_grad(), TensorStore(2e9) as kept:
        lane = lane_of(model, kept)
        record(lane, verify=True)
        with pytest.raises(NotWalkableError, match="it is random, or depends on a state"):
            lane.run(0, keep=True)


def test_blocks_that_give_other_shapes_are_recorded_again() -> None:
    model = decoder(3)
    model.layers[1].forward = lambda x, mask: (x[:1], None)
    with torch.no_grad(), TensorStore(2e9) as kept:
        lane = lane_of(model, kept)
        assert record(lane) == [0]
        lane.run(0, keep=True)
        assert lane.finish(0)
        assert record(lane) == [1, 2]
        lane.run(1, keep=True)
        assert not lane.finish(1)
        assert record(lane) == [2]
        assert lane.call_of(2, 0).args[0].shape == (1, 6, 16)


def test_an_opaque_gift_is_refused() -> None:
    model = decoder(2)
    model.layers[0].forward = lambda x, mask: object()
    with torch.no_grad(), TensorStore(2e9) as kept:
        lane = lane_of(model, kept)
        record(lane)
        with pytest.raises(NotWalkableError, match=r"layers\.0 returns an object"):
            lane.run(0, keep=True)


def test_the_model_around_stops_at_the_first_block_to_come() -> None:
    model, seen = decoder(2), []
    model.table.register_forward_hook(lambda *_: seen.append("table"))
    model.head.register_forward_hook(lambda *_: seen.append("head"))
    with torch.no_grad(), TensorStore(2e9) as kept:
        lane = lane_of(model, kept)
        run_around(lane)
        assert seen == ["table"] * 3
        walk(lane)
        seen.clear()
        run_around(lane)
        assert seen == ["table", "head"] * 3
