"""What a kernel's Python did in one call, so that it can be done again without it.

While it runs, torch shows every operation on tensors and `direct` every launch; what remains of a
call is: take memory, start kernels, and few operations of torch's own. What only kernels see lies
in one piece of memory. It comes as it is, also where torch would fill it to find bugs
(torch.utils.deterministic): nothing may be read of it that was not written.
"""

from copy import copy
from dataclasses import dataclass
from functools import partial
from inspect import getclosurevars, isfunction
from typing import Any

import torch
import triton
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map_only

from blockscale.kernels.cuda.direct import watch

_EMPTY = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
_REPEATED = {  # operations that depend on nothing but their arguments
    *("zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones"),
    *("_to_copy", "clone", "copy_", "mul", "index_select", "mm", "addmm", "_scaled_mm"),
}
_PRODUCTS = ("mm", "addmm")  # in float32 they ask how precise they are to be
_ALIGNED = 512  # bytes, as torch's allocator has it
_MOST = 4096  # descriptors of tensors that a launch remembers
_STREAM = 3  # its place among a launcher's arguments
_KNOWN = ("3.6",)  # versions of Triton whose launcher need not be asked


class _At:
    """A pointer, where a launcher expects a tensor."""

    __slots__ = ("at",)

    def __init__(self, at: int) -> None:
        self.at = at

    def data_ptr(self) -> int:
        return self.at


class Launch:
    """A compiled kernel with its grid and arguments, but for the stream and pointers."""

    reads: frozenset[int] = frozenset()  # slots that it needs as tensors: only their addresses

    def __init__(self, compiled: Any, grid: tuple[int, ...]) -> None:
        self.compiled = compiled  # without it Triton may unload what `run` starts
        self.run, before, self.maps = _way(compiled)
        self.arguments: list[Any] = [*grid, *before]
        self.pointers: list[tuple[int, int, int]] = []  # place, slot, bytes on from there
        self.descriptors: list[tuple[int, int, int, Any, Any]] = []  # and one like it, and its map
        self.known: dict[tuple[int, int], Any] = {}

    def takes(self, argument: Any, number: int, place: tuple[int, int] | None) -> None:
        """The kernel's next argument; place: of a tensor or what describes one, slot and beyond."""
        at = len(self.arguments)
        self.arguments.append(argument if place is None else None)
        if place is None:
            return
        if not hasattr(argument, "block_shape"):
            self.pointers.append((at, *place))
            return
        make = self.maps.get(number)
        self.arguments += make(argument)[1:] if make else ()
        like = copy(argument)
        like.base = None  # not to keep its memory
        self.descriptors.append((at, *place, like, make))

    def __call__(self, at: list[int], tensors: list[Any], stream: int) -> None:
        """Start it. at: the address of each slot."""
        del tensors
        arguments = self.arguments.copy()
        arguments[_STREAM] = stream
        for place, slot, beyond in self.pointers:
            arguments[place] = at[slot] + beyond
        for place, slot, beyond, like, make in self.descriptors:
            found = self.known.get((place, at[slot]))
            arguments[place] = found or self._moved(place, at[slot], beyond, like, make)
        self.run(*arguments)

    def _moved(self, place: int, start: int, beyond: int, like: Any, make: Any) -> Any:
        """A descriptor like another, of memory elsewhere."""
        if len(self.known) >= _MOST:
            self.known.clear()
        found = copy(like)
        found.base = _At(start + beyond)
        if make:
            found = make(found)[0]
        self.known[place, start] = found
        return found


def _way(compiled: Any) -> tuple[Any, list[Any], dict[int, Any]]:
    """What starts a compiled kernel, its arguments before the kernel's own, and what makes a tensor
    map and its shape of each descriptor, by the argument's number.

    That is Triton's launcher. In the versions that are known it only adds scratch memory, of which
    our kernels take none, and makes the maps at each call before it calls the C function that takes
    all of it: there it is that function.
    """
    launcher = compiled.run
    function, metadata, no_hooks = compiled.function, compiled.packed_metadata, (None, None, None)
    version = ".".join(triton.__version__.split(".")[:2])
    plain = version in _KNOWN and type(launcher).__name__ == "CudaLauncher"
    if not plain or launcher.global_scratch_size or launcher.profile_scratch_size:
        return launcher, [None, function, metadata, *no_hooks], {}
    flags = launcher.launch_cooperative_grid, launcher.launch_pdl
    before = [None, function, *flags, None, None, metadata, *no_hooks]
    if not isfunction(launcher.launch):
        return launcher.launch, before, {}
    from triton.backends.nvidia.driver import make_tensordesc_arg

    inside = getclosurevars(launcher.launch).nonlocals  # of wrap_handle_tensordesc
    numbers, of = sorted(inside["tensordesc_indices"]), inside["tensordesc_meta"]
    makes = [partial(make_tensordesc_arg, metadata=each) for each in of]
    return inside["launcher"], before, dict(zip(numbers, makes, strict=True))


@dataclass(frozen=True)
class _Slot:
    """A tensor's number in a list; where a Slot stands among arguments, that tensor belongs."""

    number: int


@dataclass
class Repeat:
    """An operation of torch's own."""

    operation: Any
    arguments: tuple[Any, ...]
    named: dict[str, Any]
    out: int

    def __call__(self, at: list[int], tensors: list[Any], stream: int) -> None:
        """Do it again."""
        del stream
        arguments = [self._filled(each, tensors) for each in self.arguments]
        named = {name: self._filled(each, tensors) for name, each in self.named.items()}
        found = tensors[self.out] = self.operation(*arguments, **named)
        at[self.out] = found.data_ptr()

    @staticmethod
    def _filled(argument: Any, tensors: list[Any]) -> Any:
        return tensors[argument.number] if type(argument) is _Slot else argument

    @property
    def reads(self) -> set[int]:
        """The slots that it needs as tensors."""
        every = (*self.arguments, *self.named.values())
        return {each.number for each in every if type(each) is _Slot}


@dataclass(frozen=True)
class Memory:
    """What a tensor is, beside its numbers."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> "Memory":
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype)

    @property
    def nbytes(self) -> int:
        """From its first element to its last."""
        last = sum((n - 1) * stride for n, stride in zip(self.shape, self.stride, strict=True))
        return (last + 1) * self.dtype.itemsize


@dataclass
class View:
    """A tensor in the memory of another, so many bytes beyond its first."""

    whole: int
    beyond: int
    memory: Memory
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


Step = Launch | Repeat | View


@dataclass
class Recording:
    """A call to be repeated. Slots: the tensors of its arguments come first.

    made: slots that are new tensors; lent: slots in one piece of memory of `scratch` bytes, which
    only kernels see, and where there. result: slots; alone: whether it is one tensor, no list.
    """

    device: int
    slots: int
    made: list[tuple[int, Memory]]
    lent: list[tuple[int, int]]
    scratch: int
    steps: list[Step]
    result: list[int]
    alone: bool

    def __call__(self, given: list[Tensor], at: list[int]) -> Any:
        """The result for other tensors of the same kind. at: their addresses, which is added to."""
        if current_device() != self.device:
            with torch.cuda.device(self.device):
                return self(given, at)
        new = self.slots - len(at)
        at += [0] * new
        tensors: list[Any] = [*given, *[None] * new]
        for slot, memory in self.made:
            found = tensors[slot] = take(memory.shape, memory.stride, memory.dtype)
            at[slot] = found.data_ptr()
        if self.scratch:
            held = take((self.scratch,), (1,), torch.uint8)
            start = held.data_ptr()
            for slot, beyond in self.lent:
                at[slot] = start + beyond
        stream = current_stream(self.device)
        for step in self.steps:
            step(at, tensors, stream)
        if self.alone:
            return tensors[self.result[0]]
        return [tensors[slot] for slot in self.result]


def _take(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """New memory on the current device."""
    return torch.empty_strided(shape, stride, dtype=dtype, device="cuda")


try:  # in less time: what Inductor's code calls, which another torch may not have
    from torch._C._dynamo.guards import _empty_strided_cuda as take  # type: ignore[attr-defined]
except ImportError:
    take = _take
# A torch without CUDA has neither
current_device: Any = getattr(torch._C, "_cuda_getDevice", None)
current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


class Recorder(TorchDispatchMode):
    """Watches one call. `why`: what cannot be repeated, or None."""

    def __init__(self, given: list[Tensor]) -> None:
        super().__init__()
        self.why: str | None = None
        self.given = len(given)
        self.kept: list[Tensor] = []  # as long as they are there, so are their identities
        self.number: dict[int, int] = {}
        self.place: list[
            tuple[int, int]
        ] = []  # of each slot: the one whose memory it has, bytes on
        self.made: dict[int, Memory] = {}
        self.steps: list[Step] = []
        for each in given:
            self._add(each, None)
        self.starts = 0
        if any(not each.numel() for each in given):
            self.why = "an empty tensor"

    def _add(self, tensor: Tensor, within: int | None) -> int:
        number = self.number[id(tensor)] = len(self.kept)
        self.kept.append(tensor)
        place = (number, 0)
        if within is not None:
            root, beyond = self.place[within]
            place = root, beyond + tensor.data_ptr() - self.kept[within].data_ptr()
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
            self.made[number] = Memory.of(out)
            return
        start = out.untyped_storage().data_ptr()
        of = [each for each in read if each.untyped_storage().data_ptr() == start]
        if of and not func._schema.is_mutable:
            number = self._add(out, self.number[id(of[0])])
            root, beyond = self.place[number]
            whole = self.kept[root]
            if out.itemsize != whole.itemsize and not (whole.ndim and whole.is_contiguous()):
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
        self.steps.append(Repeat(func, arguments, named, number))

    def _slot(self, tensor: Tensor) -> _Slot:
        return _Slot(self.number[id(tensor)])

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
        if self.starts != sum(type(step) is Launch for step in self.steps):
            self.why = self.why or "a launch that went past `direct`"
        results = result if isinstance(result, list) else [result]
        numbers = [self.number.get(id(each), -1) for each in results]
        if self.why or any(n < 0 or self.place[n][0] < self.given for n in numbers):
            return self.why or "the result is not of the call's own making"
        numbers = [self._whole(n, numbers) for n in numbers]
        steps, needed = self._needed(numbers)
        made = [(n, memory) for n, memory in self.made.items() if n in needed]
        lent, scratch = [], 0
        for n, memory in self.made.items():
            if n not in needed:
                lent.append((n, scratch))
                scratch += -(-memory.nbytes // _ALIGNED) * _ALIGNED
        alone = not isinstance(result, list)
        return Recording(device, len(self.kept), made, lent, scratch, steps, numbers, alone)

    def _whole(self, number: int, results: list[int]) -> int:
        """A result's slot, or what it is a view of, where that may as well be new in its shape:
        where it is all of it, and nothing else needs it but kernels."""
        root, beyond = self.place[number]
        tensor, whole = self.kept[number], self.kept[root]
        same = not beyond and tensor.dtype is whole.dtype and tensor.numel() == whole.numel()
        if root not in self.made or not (same and tensor.is_contiguous() and whole.is_contiguous()):
            return number
        # views look at its memory alone, whatever its shape
        read = any(type(step) is Repeat and root in step.reads for step in self.steps)
        if read or any(self.place[n][0] == root for n in results if n != number):
            return number
        self.made[root] = Memory.of(tensor)
        return root

    def _needed(self, numbers: list[int]) -> tuple[list[Step], set[int]]:
        """The steps without views that only launches read, and the slots needed as tensors."""
        needed: set[int] = set(numbers)
        steps: list[Step] = []
        for step in reversed(self.steps):
            if type(step) is View and step.out not in needed:
                continue
            needed |= step.reads
            steps.append(step)
        return steps[::-1], needed
