"""Watches a kernel's Python for one call, so that it can be repeated (recording.py).

While it runs, torch shows every operation on tensors and `direct` every launch. What it can
see to depend on anything but the kind of a call (replay.py) is refused.
"""

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map_only

from blockscale.kernels.cuda.replay.direct import watch
from blockscale.kernels.cuda.replay.recording import (
    Drop,
    Memory,
    Recording,
    Repeat,
    Slot,
    Step,
    Take,
    View,
)
from blockscale.kernels.cuda.replay.relaunch import Launch

_EMPTY = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
_REPEATED = {  # operations that depend on nothing but their arguments
    *("zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones"),
    *("_to_copy", "clone", "copy_", "mul", "index_select", "mm", "addmm", "_scaled_mm"),
}
_SHORTER = {"clone": torch.clone, "zeros": torch.zeros}  # the same, in half the time
_PRODUCTS = ("mm", "addmm")  # in float32 they ask how precise they are to be
_ALIGNED = 512  # bytes, as torch's allocator has it


class Recorder(TorchDispatchMode):
    """Watches one call. `why`: what cannot be repeated, or None."""

    def __init__(self, given: list[Tensor]) -> None:
        super().__init__()
        self.why: str | None = None
        self.given = len(given)
        self.alive: dict[int, weakref.ref[Tensor]] = {}  # slots' tensors that have not gone
        self.number: dict[int, int] = {}  # by identity, of those
        self.memory: list[Memory] = []
        # of each slot: its address, the slot whose memory it has, and bytes on from there
        self.address: list[int] = []
        self.place: list[tuple[int, int]] = []
        self.made: dict[int, Memory] = {}
        self.born: dict[int, int] = {}  # before which step
        self.steps: list[Step] = []
        for each in given:
            self._add(each, None)
        self.starts = 0
        if any(not each.numel() for each in given):
            self.why = "an empty tensor"

    def _add(self, tensor: Tensor, within: int | None) -> int:
        number, known = len(self.memory), id(tensor)

        def gone(_: Any) -> None:
            """Another tensor may have this one's identity now."""
            if self.number.get(known) == number:
                del self.number[known]

        self.number[known] = number
        self.alive[number] = weakref.ref(tensor, gone)
        self.memory.append(Memory.of(tensor))
        self.address.append(tensor.data_ptr())
        place = (number, 0)
        if within is not None:
            root, beyond = self.place[within]
            place = root, beyond + tensor.data_ptr() - self.address[within]
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
        read = [each for each in tree_iter((args, kwargs)) if isinstance(each, Tensor)]
        if type(out) is not Tensor or any(id(each) not in self.number for each in read):
            self.why = self.why or f"{func}: its tensors are not known"
            return
        if name in _EMPTY:
            number = self._add(out, None)
            self.made[number], self.born[number] = Memory.of(out), len(self.steps)
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
            self.steps.append(View(root, beyond, Memory.of(out), number))
            return
        precise = name in _PRODUCTS and args[0].dtype is torch.float32
        if name not in _REPEATED or precise:
            self.why = self.why or f"{func} is not among what is repeated"
            return
        number = self.number.get(id(out), -1)
        if number < 0:
            number = self._add(out, self.number[id(of[0])] if of else None)
        arguments, named = tree_map_only(Tensor, self._slot, (args, kwargs))
        self.steps.append(Repeat(_SHORTER.get(name, func), arguments, named, number))

    def _slot(self, tensor: Tensor) -> Slot:
        return Slot(self.number[id(tensor)])

    def started(self, metadata: Any) -> None:
        """As a hook of Triton's: any kernel starts, in any thread."""
        del metadata
        self.starts += watch.by is self

    def launched(self, compiled: Any, grid: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
        """As `direct` says after a launch. compiled: None if it is not known what ran."""
        if not hasattr(compiled, "packed_metadata"):
            self.why = self.why or "a launch that Triton has to look at"
            return
        step = Launch(compiled, grid)
        for number, each in enumerate(arguments):
            tensor = each.base if hasattr(each, "block_shape") else each
            if not isinstance(tensor, Tensor):
                step.takes(each, number, None)
            elif id(tensor) in self.number:
                step.takes(each, number, self.place[self.number[id(tensor)]])
            else:
                self.why = self.why or "a launch with a tensor that is not known"
                return
        self.steps.append(step)

    def recording(self, result: Any, device: int) -> Recording | str:
        """What was seen, or why it cannot be repeated."""
        if self.starts != sum(isinstance(step, Launch) for step in self.steps):
            self.why = self.why or "a launch that went past `direct`"
        results = result if isinstance(result, list) else [result]
        numbers = [self.number.get(id(each), -1) for each in results]
        if self.why or any(n < 0 or self.place[n][0] < self.given for n in numbers):
            return self.why or "the result is not of the call's own making"
        numbers = [self._whole(n, numbers) for n in numbers]
        needed = self._needed(numbers)
        last = self._last(numbers, needed)
        lent, scratch = self._lent(needed, last)
        alone = not isinstance(result, list)
        steps = self._steps(needed, last)
        return Recording(device, len(self.memory), lent, scratch, steps, numbers, alone)

    def _whole(self, number: int, results: list[int]) -> int:
        """A result's slot, or what it is a view of, where that may as well be new in its shape:
        where it is all of it, and nothing else needs it but kernels."""
        root, beyond = self.place[number]
        memory, whole = self.memory[number], self.memory[root]
        same = not beyond and memory.dtype is whole.dtype and memory.nbytes == whole.nbytes
        if root not in self.made or not (same and memory.compact and whole.compact):
            return number
        # views look at its memory alone, whatever its shape
        read = any(isinstance(step, Repeat) and root in step.reads for step in self.steps)
        if read or any(self.place[n][0] == root for n in results if n != number):
            return number
        self.made[root] = memory
        return root

    def _needed(self, numbers: list[int]) -> set[int]:
        """The slots needed as tensors: of results, and of what torch does with them."""
        needed = set(numbers)
        for step in reversed(self.steps):
            if not isinstance(step, View) or step.out in needed:
                needed |= step.reads
        return needed

    def _last(self, numbers: list[int], needed: set[int]) -> dict[int, int]:
        """The last step that needs each slot's memory; results are needed after all of them."""
        last: dict[int, int] = {}
        for i, step in enumerate(self.steps):
            if isinstance(step, Launch):
                used = {each[1] for each in (*step.pointers, *step.descriptors)}
            elif isinstance(step, Repeat) or step.out in needed:
                used = {step.out, *step.reads}
            else:
                continue
            last |= {self.place[n][0]: i for n in used}
        return last | {self.place[n][0]: len(self.steps) for n in numbers}

    def _lent(self, needed: set[int], last: dict[int, int]) -> tuple[list[tuple[int, int]], int]:
        """Where memory that only kernels see lies in one piece, and how much that is."""
        found: list[tuple[int, int, int, int]] = []  # where, size, last step, slot
        for n, memory in self.made.items():
            if n in needed:
                continue
            at, size = 0, -(-memory.nbytes // _ALIGNED) * _ALIGNED
            for other, much, until, _ in sorted(found):
                if until >= self.born[n] and at + size > other:
                    at = max(at, other + much)
            found.append((at, size, last.get(n, -1), n))
        scratch = max((at + size for at, size, *_ in found), default=0)
        return [(n, at) for at, _, _, n in found], scratch

    def _steps(self, needed: set[int], last: dict[int, int]) -> list[Step | Take | Drop]:
        """What there is to do: without views that only kernels read."""
        steps: list[Step | Take | Drop] = []
        there: set[int] = set()  # tensors that are not the caller's
        for i, step in enumerate(self.steps):
            new = [n for n in self.made if n in needed and self.born[n] == i]
            steps += [Take(n, self.made[n]) for n in new]
            there |= {*new}
            if not isinstance(step, View) or step.out in needed:
                steps.append(step)
                there |= set() if isinstance(step, Launch) else {step.out}
            over = [n for n in there if last[self.place[n][0]] == i]
            steps += [Drop(over)] if over else []
        new = [n for n in self.made if n in needed and self.born[n] == len(self.steps)]
        return [*steps, *(Take(n, self.made[n]) for n in new)]
