# SPDX-License-Identifier: BSD-3-Clause
"""The calls of a model's blocks over all batches: what they are given, what they gave."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from blockscale.calibration.block_calls import (
    BlockCall,
    Key,
    NestedTensors,
    Shape,
    TensorStore,
    apart,
    as_call,
    digest,
    equal,
    first_tensor,
    tensors,
    version,
)
from blockscale.calibration.find_blocks import LayerBlock, NotWalkableError
from blockscale.calibration.padding import Padding
from blockscale.calibration.ranks import ALONE
from blockscale.core.untrusted import kind_of

_PLAIN = (type(None), bool, int, float, complex, str, torch.dtype, torch.device)
_NEAR = 1e-5  # what a call may differ by when it is made again, of the largest element


class Lane:
    """One way through the blocks: of the float model, or of the one that is quantized so far.

    around: what the model around the blocks is run in, such as its quantized layers put in
    """

    def __init__(
        self,
        model: nn.Module,
        blocks: Sequence[LayerBlock],
        batches: Sequence[Any],
        store: TensorStore,
        around: Callable[[], AbstractContextManager[object]] = nullcontext,
    ):
        self.model, self.blocks, self.batches = model, blocks, batches
        self.store, self.around = store, around
        self.numbers = {block.module: i for i, block in enumerate(blocks)}
        self.finished_blocks: set[int] = set()
        self.ready: Callable[[LayerBlock], None] = lambda _: None  # before a block runs
        self.padding = Padding()
        self.ranks = ALONE  # who has other batches
        self.device: torch.device | None = None  # of batches, where it is not the model's
        self.met_others = False  # while recording: layers that have to be chosen first
        self._calls: dict[int, list[NestedTensors]] = {}
        self._gave: dict[int, list[NestedTensors]] = {}
        self._shapes: dict[Key, Shape] = {}  # of what blocks gave
        self._ghost_shapes: dict[Key, Shape] = {}  # of ghosts
        self._uses: Counter[Key] = Counter()  # by calls that are still to be made
        self._live: dict[int, list[Tensor]] = {}  # what a block gave inside the running model
        self.notes: list[tuple[str, str]] = []  # a block, and what is noted of it

    def expect(self, calls: Mapping[int, list[NestedTensors]], keys: set[Key]) -> None:
        """These blocks are called so next. made: tensors that were kept for it, needed or not."""
        for i, parts in calls.items():
            self._calls[i] = parts
            self._uses.update(key for each in parts for key in each.keys)
        for key in keys - self._uses.keys():
            self.store.drop(key)
        self._forget()

    def call_of(self, i: int, b: int) -> BlockCall:
        """The call of block i for batch b; what others still need of its tensors is copied."""
        values: dict[Key, Tensor] = {}

        def tensor(key: Key) -> Tensor:
            if key not in values:
                value = self.store.get(key)
                alone = key.block < 0 and self._uses[key] > 1
                values[key] = value if alone or self.store.on_disk(key) else value.clone()
            return values[key]

        return as_call(self._calls[i][b].put_together(tensor))

    def run(self, i: int, *, keep: bool, tell: Callable[[], None] = lambda: None) -> None:
        """Block i over all batches. keep: what it gives, for the blocks after it.

        Raises NotWalkableError where it does not give what it gave inside the model.
        """

        def one(b: int) -> None:
            self.run_one(i, b, keep=keep)
            tell()

        self.ranks.each(len(self.batches), one)

    def run_one(self, i: int, b: int, *, keep: bool) -> None:
        """The same for one batch."""
        block = self.blocks[i]
        args, kwargs = self.call_of(i, b)
        members = [(t, version(t)) for t in tensors((args, kwargs))]
        try:
            with self.padding.during(self.batches[b]):
                gave = block.module(*args, **kwargs)
        except Exception as error:
            why = f"{block.name} called by itself raised {type(error).__name__}: {error}"
            raise NotWalkableError(block.chain, why) from error
        self._check(i, b, gave)
        if any(version(t) != old and self._is_kept(i, b, t) for t, old in members):
            why = f"{block.name} changes a shared argument in place"
            raise NotWalkableError(block.chain, why)
        if keep:
            self._keep(i, b, gave)

    def keeps(self, i: int) -> bool:
        """Whether what block i gives is known."""
        return i in self._gave

    def target(self, i: int, b: int) -> Tensor:
        """The first tensor of what block i gave for batch b."""
        result = first_tensor(self._gave[i][b].put_together(self.store.get))
        if result is None:
            raise NotWalkableError(self.blocks[i].chain, f"{self.blocks[i].name} returns no tensor")
        return result

    def finish(self, i: int) -> bool:
        """Block i is done: drop what nobody needs any more. Whether the next calls hold: False if
        it gave other shapes than the block before it."""
        self.finished_blocks.add(i)
        for parts in self._calls.pop(i, []):
            self._uses.subtract(parts.keys)
        shapes = {key: shape for key, shape in self._ghost_shapes.items() if key.block == i}
        is_same = all(self._shapes.get(key) == shapes[key] for key in shapes if self._uses[key] > 0)
        is_same = all(self.ranks.together(lambda: is_same))
        for key in shapes:
            del self._ghost_shapes[key]
        if not is_same:
            self._calls.clear()
            self._uses.clear()
            self._ghost_shapes.clear()
        self._forget()
        return is_same

    def _is_kept(self, i: int, b: int, tensor: Tensor) -> bool:
        keys = self._calls[i][b].keys
        return any(self.store.get(key) is tensor for key in keys if not self.store.on_disk(key))

    def _keep(self, i: int, b: int, gave: Any) -> None:
        def key(place: int, tensor: Tensor) -> Key:
            own = self.gives(i, b, place)
            self.store.add(own, tensor)
            self._shapes[own] = Shape(tensor.shape, tensor.dtype, tensor.device)
            return own

        parts = NestedTensors.of(gave, key)
        odd = [leaf for leaf in parts.leaves if not isinstance(leaf, (Key, *_PLAIN))]
        if odd:
            block = self.blocks[i]
            raise NotWalkableError(block.chain, f"{block.name} returns {kind_of(odd[0])}")
        if b == 0:
            self._gave[i] = []
        self._gave[i].append(parts)

    def _check(self, i: int, b: int, gave: Any) -> None:
        """Compare with what the block gave inside the running model, once."""
        live = self._live.pop(i, None) if b == 0 else None
        if live is None:
            return
        again, block = tensors(gave), self.blocks[i]
        same = len(live) == len(again) and all(
            x.shape == y.shape and x.dtype == y.dtype for x, y in zip(live, again, strict=True)
        )
        if same and all(equal(x, y) for x, y in zip(live, again, strict=True)):
            return
        far = not same or max(apart(x, y) for x, y in zip(live, again, strict=True)) > _NEAR
        if far:
            why = "gives another result when called again: it is random, or depends on a state"
            raise NotWalkableError(block.chain, f"{block.name} {why}")
        self.notes.append(
            (block.name, "its block gives slightly different results (last bits) when called again")
        )

    def gives(self, i: int, b: int, place: int) -> Key:
        """Where a tensor is kept that block i gives for batch b."""
        return Key(id(self), i, (b, place))

    def constant(self, tensor: Tensor) -> Key:
        """Where a tensor is kept that no block gave; equal ones are kept once."""
        key = Key(id(self), -1, digest(tensor))
        if key not in self.store:
            self.store.add(key, tensor.detach().clone())
        return key

    def output_of(self, i: int, b: int) -> NestedTensors | None:
        """What block i gave for batch b; None if it is not kept."""
        return self._gave[i][b] if i in self._gave else None

    def alike(self, i: int, b: int) -> tuple[NestedTensors, dict[Key, Shape]] | None:
        """What block i might give for batch b, as the last one of its chain that is done."""
        last = self._last_done(i)
        if last is None:
            return None
        like = self._gave[last][b]
        keys = [self.gives(i, b, n) for n in range(len(like.leaves))]
        pairs = [
            (own, old) for own, old in zip(keys, like.leaves, strict=True) if isinstance(old, Key)
        ]
        leaves = [
            own if isinstance(old, Key) else old for own, old in zip(keys, like.leaves, strict=True)
        ]
        shapes = {own: self._shapes[old] for own, old in pairs}
        if i not in self.finished_blocks:
            self._ghost_shapes |= shapes
        return NestedTensors(tuple(leaves), like.spec), shapes

    def live(self, i: int, gave: Any) -> None:
        """What block i gave for the first batch inside the running model."""
        self._live[i] = tensors(gave)

    def trust(self, i: int) -> None:
        """Do not compare block i with what it gave inside the running model."""
        self._live.pop(i, None)

    def _last_done(self, i: int) -> int | None:
        """The block of the same chain that was done last."""
        chain = self.blocks[i].chain
        ends = [
            j for j in self._gave if j in self.finished_blocks and self.blocks[j].chain == chain
        ]
        return ends[-1] if ends else None

    def _forget(self) -> None:
        """Drop what is needed neither by a call nor by the model around the blocks."""
        for j in [j for j in self._gave if j in self.finished_blocks]:
            is_last = j == self._last_done(j)
            keys = {key for parts in self._gave[j] for key in parts.keys}
            if not is_last and not any(self._uses[key] > 0 for key in keys):
                for key in keys:
                    self.store.drop(key)
                    del self._shapes[key]
                del self._gave[j]
        for key in [key for key, uses in self._uses.items() if uses <= 0]:
            if key.block < 0:
                self.store.drop(key)
            del self._uses[key]
