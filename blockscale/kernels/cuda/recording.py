# SPDX-License-Identifier: BSD-3-Clause
"""What a kernel's Python did in one call, recorded, and done again without it.

Tensors are numbered: a slot is such a number, and `at` and `tensors` are lists by it, of addresses
and, where torch needs them, of tensors. Memory is taken, kernels are started, and a few operations
of torch's own are done. What only kernels
see lies in one piece of memory. It comes as it is, also where torch would fill it to find bugs
(torch.utils.deterministic): nothing may be read of it that was not written.
"""

import math
import weakref
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from blockscale.core.torch_private import (
    TorchDispatchMode,
    cuda_device,
    cuda_stream,
    empty_strided_cuda,
    pytree,
)
from blockscale.kernels.cuda.relaunch import Launch, watch


@dataclass(frozen=True)
class Slot:
    """A tensor's number in a list; where a Slot stands among arguments, that tensor belongs."""

    number: int


@dataclass
class Repeat:
    """An operation of torch's own, with a Slot in the place of each tensor; out: a slot"""

    operation: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    out: int

    def __call__(self, at: list[int], tensors: list[Any], stream: int) -> None:
        """Do it again."""
        del stream
        arguments = [self._fill(each, tensors) for each in self.arguments]
        keywords = {name: self._fill(each, tensors) for name, each in self.keywords.items()}
        result = tensors[self.out] = self.operation(*arguments, **keywords)
        at[self.out] = result.data_ptr()

    @staticmethod
    def _fill(argument: Any, tensors: list[Any]) -> Any:
        return tensors[argument.number] if type(argument) is Slot else argument

    @property
    def reads(self) -> set[int]:
        """The slots that it needs as tensors."""
        every = (*self.arguments, *self.keywords.values())
        return {each.number for each in every if type(each) is Slot}


@dataclass(frozen=True)
class TensorMemory:
    """What a tensor is, beside its numbers."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> "TensorMemory":
        """That of a tensor."""
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype)

    @property
    def compact(self) -> bool:
        """Whether its elements lie side by side, in order."""
        apart = [math.prod(self.shape[i:]) for i in range(1, len(self.shape) + 1)]
        each = zip(self.shape, self.stride, apart, strict=True)
        return all(n == 1 or stride == after for n, stride, after in each)

    @property
    def nbytes(self) -> int:
        """How many bytes lie from the begin of its first element to the end of its last."""
        last = sum((n - 1) * stride for n, stride in zip(self.shape, self.stride, strict=True))
        return (last + 1) * self.dtype.itemsize


@dataclass
class Alias:
    """A tensor in the memory of another.

    whole: the other's slot; beyond: bytes from its first element; memory: its own shape, strides
    and dtype; out: its slot
    """

    whole: int
    beyond: int
    memory: TensorMemory
    out: int

    def __call__(self, at: list[int], tensors: list[Any], stream: int) -> None:
        """Make it."""
        del at, stream
        whole, memory = tensors[self.whole], self.memory
        if whole.dtype is not memory.dtype:
            whole = whole.view(memory.dtype)
        first = whole.storage_offset() + self.beyond // memory.dtype.itemsize
        tensors[self.out] = whole.as_strided(memory.shape, memory.stride, first)

    @property
    def reads(self) -> set[int]:
        """The slot that it needs as a tensor."""
        return {self.whole}


@dataclass
class Take:
    """A new tensor, for operations of torch's own."""

    out: int
    memory: TensorMemory

    def __call__(self, at: list[int], tensors: list[Any], stream: int) -> None:
        """Take memory."""
        del stream
        memory = self.memory
        new = tensors[self.out] = take(memory.shape, memory.stride, memory.dtype)
        at[self.out] = new.data_ptr()


@dataclass
class Drop:
    """Tensors that nothing needs any more: what comes next may have their memory."""

    slots: list[int]

    def __call__(self, at: list[int], tensors: list[Any], stream: int) -> None:
        """Give it back."""
        del at, stream
        for slot in self.slots:
            tensors[slot] = None


Action = Launch | Repeat | Alias  # what is seen of a call


@dataclass
class Recording:
    """A call to be repeated.

    device: the GPU's number
    slots: how many tensors there are; those of the call's arguments come first
    lent: (slot, bytes from the start) in one piece of memory, which only kernels see
    scratch: the bytes of that memory
    actions: what is done, in order
    result: the slots of the tensors that are returned
    alone: whether that is one tensor, not a list
    """

    device: int
    slots: int
    lent: list[tuple[int, int]]
    scratch: int
    actions: list[Action | Take | Drop]
    result: list[int]
    alone: bool

    def __call__(self, parts: list[Tensor], at: list[int]) -> Any:
        """The result for other tensors of the same kind. at: their addresses, which is added to."""
        if current_device() != self.device:
            with torch.cuda.device(self.device):
                return self(parts, at)
        new = self.slots - len(at)
        at += [0] * new
        tensors: list[Any] = [*parts, *[None] * new]
        if self.scratch:
            memory = take((self.scratch,), (1,), torch.uint8)
            start = memory.data_ptr()
            for slot, beyond in self.lent:
                at[slot] = start + beyond
        stream = current_stream(self.device)
        for action in self.actions:
            action(at, tensors, stream)
        if self.alone:
            return tensors[self.result[0]]
        return [tensors[slot] for slot in self.result]


def _take(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """New memory on the current device."""
    return torch.empty_strided(shape, stride, dtype=dtype, device="cuda")


take = empty_strided_cuda() or _take  # the first takes less time
current_device, current_stream = cuda_device, cuda_stream


# The recorder watches a kernel's Python for one call. While it runs, torch shows every operation on
# tensors and `Direct` (relaunch.py) every launch. What it can see to depend on anything but the
# kind of a call (replay.py) is refused.

_EMPTY = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
_REPEATED = {  # operations that depend on nothing but their arguments
    *("zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones"),
    *("_to_copy", "clone", "copy_", "mul", "index_select", "mm", "addmm", "_scaled_mm"),
}
_SHORTER = {"clone": torch.clone, "zeros": torch.zeros}  # the same, in half the time
_PRODUCTS = ("mm", "addmm")  # in float32 they ask how precise they are to be
_ALIGNED = 512  # bytes, as torch's allocator has it


class Place(NamedTuple):
    """Where a slot's memory begins: in that of the slot `root`, `beyond` bytes from its start."""

    root: int
    beyond: int


class _Lent(NamedTuple):
    """Memory that only kernels see: `size` bytes from `start`, needed until the action `last`."""

    start: int
    size: int
    last: int
    slot: int


class Recorder(TorchDispatchMode):
    """Watches one call, whose tensors are `inputs`.

    why: what cannot be repeated, or None
    alive: of each slot, its tensor while that lives
    number: the slots of living tensors, by identity
    memory, address, place: of each slot, what it is and where
    allocations: the slots of new memory, and what they are; born: before which action each was made
    actions: what was seen
    starts: how many kernels started in this thread
    """

    def __init__(self, tensors: list[Tensor]) -> None:
        super().__init__()
        self.why: str | None = None
        self.inputs = len(tensors)
        self.alive: dict[int, weakref.ref[Tensor]] = {}
        self.number: dict[int, int] = {}
        self.memory: list[TensorMemory] = []
        self.address: list[int] = []
        self.place: list[Place] = []
        self.allocations: dict[int, TensorMemory] = {}
        self.born: dict[int, int] = {}
        self.actions: list[Action] = []
        for each in tensors:
            self._add(each, None)
        self.starts = 0
        if any(not each.numel() for each in tensors):
            self.why = "an empty tensor"

    def _add(self, tensor: Tensor, within: int | None) -> int:
        number, key = len(self.memory), id(tensor)

        def forget(_: Any) -> None:
            """Another tensor may have this one's identity now."""
            if self.number.get(key) == number:
                del self.number[key]

        self.number[key] = number
        self.alive[number] = weakref.ref(tensor, forget)
        self.memory.append(TensorMemory.of(tensor))
        self.address.append(tensor.data_ptr())
        place = Place(number, 0)
        if within is not None:
            root, beyond = self.place[within]
            place = Place(root, beyond + tensor.data_ptr() - self.address[within])
        self.place.append(place)
        return number

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        out = func(*args, **(kwargs or {}))
        self._note(func, args, kwargs or {}, out)
        return out

    def _note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        name = func._schema.name.removeprefix("aten::")
        read = [each for each in pytree.tree_iter((args, kwargs)) if isinstance(each, Tensor)]
        if type(out) is not Tensor or any(id(each) not in self.number for each in read):
            self.why = self.why or f"{func}: its tensors are not known"
            return
        if name in _EMPTY:
            number = self._add(out, None)
            self.allocations[number], self.born[number] = TensorMemory.of(out), len(self.actions)
            return
        start = out.untyped_storage().data_ptr()
        of = [each for each in read if each.untyped_storage().data_ptr() == start]
        if of and not func._schema.is_mutable:
            number = self._add(out, self.number[id(of[0])])
            root, beyond = self.place[number]
            whole = self.memory[root]
            other = out.dtype.itemsize != whole.dtype.itemsize
            if other and not (whole.shape and whole.compact):
                self.why = self.why or f"{func} of memory in another order"
            self.actions.append(Alias(root, beyond, TensorMemory.of(out), number))
            return
        precise = name in _PRODUCTS and args[0].dtype is torch.float32
        if name not in _REPEATED or precise:
            self.why = self.why or f"{func} is not among what is repeated"
            return
        number = self.number.get(id(out), -1)
        if number < 0:
            number = self._add(out, self.number[id(of[0])] if of else None)
        arguments, keywords = pytree.tree_map_only(Tensor, self._slot, (args, kwargs))
        self.actions.append(Repeat(_SHORTER.get(name, func), arguments, keywords, number))

    def _slot(self, tensor: Tensor) -> Slot:
        return Slot(self.number[id(tensor)])

    def on_start(self, metadata: Any) -> None:
        """As a hook of Triton's: any kernel starts, in any thread."""
        del metadata
        self.starts += watch.by is self

    def after_launch(
        self, compiled: Any, grid: tuple[int, ...], arguments: tuple[Any, ...]
    ) -> None:
        """As `direct` says after a launch. compiled: None if it is not known what ran."""
        if not hasattr(compiled, "packed_metadata"):
            self.why = self.why or "a launch that Triton has to look at"
            return
        action = Launch(compiled, grid)
        for number, each in enumerate(arguments):
            tensor = each.base if hasattr(each, "block_shape") else each
            if not isinstance(tensor, Tensor):
                action.takes(each, number, None)
            elif id(tensor) in self.number:
                action.takes(each, number, self.place[self.number[id(tensor)]])
            else:
                self.why = self.why or "a launch with a tensor that is not known"
                return
        self.actions.append(action)

    def recording(self, result: Any, device: int) -> Recording | str:
        """What was seen, or why it cannot be repeated."""
        if self.starts != sum(isinstance(action, Launch) for action in self.actions):
            self.why = self.why or "a launch that went past `direct`"
        results = result if isinstance(result, list) else [result]
        numbers = [self.number.get(id(each), -1) for each in results]
        if self.why or any(n < 0 or self.place[n].root < self.inputs for n in numbers):
            return self.why or "the result is not of the call's own making"
        numbers = [self._whole(n, numbers) for n in numbers]
        as_tensors = self._tensor_slots(numbers)
        last = self._last(numbers, as_tensors)
        lent, scratch = self._lent(as_tensors, last)
        alone = not isinstance(result, list)
        actions = self._actions(as_tensors, last)
        return Recording(device, len(self.memory), lent, scratch, actions, numbers, alone)

    def _whole(self, number: int, results: list[int]) -> int:
        """A result's slot, or what it is a view of, where that may as well be new in its shape:
        where it is all of it, and nothing else needs it but kernels."""
        root, beyond = self.place[number]
        memory, whole = self.memory[number], self.memory[root]
        same = not beyond and memory.dtype is whole.dtype and memory.nbytes == whole.nbytes
        if root not in self.allocations or not (same and memory.compact and whole.compact):
            return number
        # views look at its memory alone, whatever its shape
        read = any(isinstance(action, Repeat) and root in action.reads for action in self.actions)
        if read or any(self.place[n].root == root for n in results if n != number):
            return number
        self.allocations[root] = memory
        return root

    def _tensor_slots(self, numbers: list[int]) -> set[int]:
        """The slots needed as tensors: of results, and of what torch does with them."""
        as_tensors = set(numbers)
        for action in reversed(self.actions):
            if not isinstance(action, Alias) or action.out in as_tensors:
                as_tensors |= action.reads
        return as_tensors

    def _last(self, numbers: list[int], as_tensors: set[int]) -> dict[int, int]:
        """The last action that needs each root's memory; results are needed after all of them."""
        last: dict[int, int] = {}
        for i, action in enumerate(self.actions):
            if isinstance(action, Launch):
                slots = action.slots
            elif isinstance(action, Repeat) or action.out in as_tensors:
                slots = {action.out, *action.reads}
            else:
                continue
            last |= {self.place[n].root: i for n in slots}
        return last | {self.place[n].root: len(self.actions) for n in numbers}

    def _lent(
        self, as_tensors: set[int], last: dict[int, int]
    ) -> tuple[list[tuple[int, int]], int]:
        """Where memory that only kernels see lies in one piece, and how much that is."""
        lent: list[_Lent] = []
        for n, memory in self.allocations.items():
            if n in as_tensors:
                continue
            at, size = 0, -(-memory.nbytes // _ALIGNED) * _ALIGNED
            for other in sorted(lent):
                if other.last >= self.born[n] and at + size > other.start:
                    at = max(at, other.start + other.size)
            lent.append(_Lent(at, size, last.get(n, -1), n))
        scratch = max((each.start + each.size for each in lent), default=0)
        return [(each.slot, each.start) for each in lent], scratch

    def _actions(self, as_tensors: set[int], last: dict[int, int]) -> list[Action | Take | Drop]:
        """What there is to do: without views that only kernels read."""
        actions: list[Action | Take | Drop] = []
        there: set[int] = set()  # tensors that are not the caller's
        for i, action in enumerate(self.actions):
            new = [n for n in self.allocations if n in as_tensors and self.born[n] == i]
            actions += [Take(n, self.allocations[n]) for n in new]
            there |= {*new}
            if not isinstance(action, Alias) or action.out in as_tensors:
                actions.append(action)
                there |= set() if isinstance(action, Launch) else {action.out}
            over = [n for n in there if last[self.place[n].root] == i]
            actions += [Drop(over)] if over else []
        new = [n for n in self.allocations if n in as_tensors and self.born[n] == len(self.actions)]
        return [*actions, *(Take(n, self.allocations[n]) for n in new)]
