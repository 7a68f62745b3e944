# SPDX-License-Identifier: BSD-3-Clause
"""The calls of a model's blocks over all batches, recorded without running a block twice.

The model around the blocks is run with stubs in their places. A block that is done gives what was
kept of it; the ones after it give ghosts, as many as can be recorded at once: tensors of the right
shape that hold NaN. A later block's argument is then either a ghost or what a block gave, by
identity, or it has nothing to do with blocks (masks, position embeddings), or it was computed from
a ghost and holds NaN: there the recording ends, and goes on once the blocks before are done.
"""

from typing import Any

from torch import Tensor

from blockscale.calibration.block_calls import Key, NestedTensors, ghost, holds_nan, version
from blockscale.calibration.block_lane import Lane
from blockscale.calibration.find_blocks import NotWalkableError, Stop, stubs
from blockscale.layers.guards import call


def run_around(lane: Lane, only: int | None = None) -> None:
    """The model around the blocks over all batches, or only one of them, up to the first block that
    is not done."""

    def one(b: int) -> None:
        _Recorder(lane, b, records=False).run()

    if only is None:
        lane.ranks.each(len(lane.batches), one)
    else:
        one(only)


def record(lane: Lane, *, verify: bool = False) -> list[int]:
    """The blocks that can be run next, in their order; the lane has their calls then.

    verify: run the first of a chain inside the model for the first batch, to be compared.
    Raises NotWalkableError where batches go through different blocks.
    """
    every: list[dict[int, NestedTensors]] = []
    keys: set[Key] = set()

    def one(b: int) -> None:
        recorder = _Recorder(lane, b, verify=verify and b == 0)
        recorder.run()
        every.append(recorder.calls)
        keys.update(recorder.new_keys)

    lane.ranks.each(len(lane.batches), one)
    orders = [order for own in lane.ranks.together(lambda: [*map(list, every)]) for order in own]
    first = {next(iter(order), None) for order in orders}
    if len(first) > 1:
        block = lane.blocks[min(i for i in first if i is not None)]
        raise NotWalkableError(block.chain, "the batches do not all go through the same blocks")
    count = 0
    for step in zip(*orders, strict=False):
        if len(set(step)) > 1:
            break
        count += 1
    sequence = list(every[0])[:count]
    lane.expect({i: [result[i] for result in every] for i in sequence}, keys)
    return sequence


class _DerivedError(Exception):
    """A tensor was computed from a ghost."""


class _Recorder:
    """One batch on its way through the model, with stubs for blocks.

    records: the calls of blocks that are not done; otherwise the first of them is the end
    calls: {block: its call}; made: the keys of tensors that no block gave
    """

    def __init__(self, lane: Lane, b: int, *, records: bool = True, verify: bool = False):
        self.lane, self.b = lane, b
        self.records, self.verify = records, verify
        self.calls: dict[int, NestedTensors] = {}
        self.new_keys: set[Key] = set()
        self._visits: set[int] = set()
        self._keys: dict[int, tuple[Tensor, int, Key]] = {}  # by id; the tensor stays alive
        self._has_ghosts = False

    def run(self) -> None:
        lane = self.lane
        lane.met_others = False
        try:
            with lane.around(), stubs(lane.numbers, self._enter):
                batch = lane.batches[self.b]
                with lane.padding.during(batch):
                    call(lane.model, batch, lane.device)
        except (Stop, NotWalkableError) as error:
            if isinstance(error, NotWalkableError):
                raise
        except Exception as error:
            if not (self._has_ghosts and self.calls):  # it could not go on with a ghost
                why = f"the model around its blocks raised {type(error).__name__}: {error}"
                raise NotWalkableError(lane.blocks[0].chain, why) from error

    def _enter(self, i: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        lane, block = self.lane, self.lane.blocks[i]
        if i in self._visits:
            raise NotWalkableError(block.chain, f"{block.name} is called more than once")
        self._visits.add(i)
        if i in lane.finished_blocks:
            return self._again(i)
        if not self.records or (self.calls and lane.met_others):
            raise Stop
        try:
            self.calls[i] = NestedTensors.of((args, kwargs), lambda _, tensor: self._key(tensor))
        except _DerivedError:
            if self.calls:
                raise Stop from None
            why = f"{block.name} reads more than the output of the block before it"
            raise NotWalkableError(block.chain, why) from None
        if self.verify and len(self.calls) == 1 and lane.alike(i, self.b) is None:
            lane.ready(block)
            real = type(block.module).__mro__[1]
            lane.live(i, real.__call__(block.module, *args, **kwargs))
        if len(self._visits | lane.finished_blocks) == len(lane.blocks):
            raise Stop
        return self._ghosts(i)

    def _key(self, tensor: Tensor) -> Key:
        entry, version_, key = self._keys.get(id(tensor), (None, 0, None))
        if entry is tensor and version_ == version(tensor) and key is not None:
            return key
        if self._has_ghosts and holds_nan(tensor):
            raise _DerivedError
        key = self.lane.constant(tensor)
        self.new_keys.add(key)
        self._keys[id(tensor)] = tensor, version(tensor), key
        return key

    def _again(self, i: int) -> Any:
        """What a block that is done gave: as it was if that is kept, ghosts if not."""
        parts = self.lane.output_of(i, self.b)
        if parts is None:
            return self._ghosts(i)
        return parts.put_together(lambda key: self._own(key, self.lane.store.get(key).clone()))

    def _ghosts(self, i: int) -> Any:
        like = self.lane.alike(i, self.b)
        if like is None:
            raise Stop
        parts, shapes = like
        self._has_ghosts = True
        # the model may write into what a block that is done gave: it has done so before
        is_done = i in self.lane.finished_blocks
        by_name = {key: ghost(shape) for key, shape in shapes.items()}
        by_name = {key: x.clone() if is_done else x for key, x in by_name.items()}
        return parts.put_together(lambda key: self._own(key, by_name[key]))

    def _own(self, key: Key, tensor: Tensor) -> Tensor:
        self._keys[id(tensor)] = tensor, version(tensor), key
        return tensor
