# SPDX-License-Identifier: BSD-3-Clause
"""Compiled kernels started past Triton's own way, which takes longer than all else of a call."""

import threading
from copy import copy
from functools import partial
from inspect import getclosurevars, isfunction
from typing import Any

import torch
import triton
from torch import Tensor

from blockscale.kernels.cuda import interpreting

# A compiled kernel started again, with other addresses in the place of its tensors.

_MOST = 4096  # descriptors of tensors that a launch remembers
_STREAM = 3  # its place among a launcher's arguments
_KNOWN = ("3.6",)  # versions of Triton whose launcher need not be asked


class _At:
    """A pointer, where a launcher expects a tensor."""

    __slots__ = ("at",)

    def __init__(self, at: int) -> None:
        self.at = at

    def data_ptr(self) -> int:
        """The address, as a tensor's."""
        return self.at


class Launch:
    """A compiled kernel with its grid and arguments, but for the stream and pointers."""

    reads: frozenset[int] = frozenset()  # slots that it needs as tensors: only their addresses

    def __init__(self, compiled: Any, grid: tuple[int, ...]) -> None:
        self.compiled = compiled  # without it Triton may unload what `run` starts
        self.run, before, self.maps = _way(compiled)
        self.arguments: list[Any] = [*grid, *before]
        # plain tuples, because each call takes them apart: the argument's position, the slot that
        # has its memory, bytes from there; of a descriptor one like it, and what makes its map
        self.pointers: list[tuple[int, int, int]] = []
        self.descriptors: list[tuple[int, int, int, Any, Any]] = []
        self.copies: dict[tuple[int, int], Any] = {}

    @property
    def slots(self) -> set[int]:
        """The slots whose memory it needs."""
        return {slot for _, slot, *_ in (*self.pointers, *self.descriptors)}

    def takes(self, argument: Any, number: int, place: tuple[int, int] | None) -> None:
        """The kernel's next argument, which is `number` in its order.

        place: (slot, bytes from its start) of a tensor or of what describes one; else None
        """
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
            descriptor = self.copies.get((place, at[slot]))
            arguments[place] = descriptor or self._relocate(place, at[slot], beyond, like, make)
        self.run(*arguments)

    def _relocate(self, place: int, start: int, beyond: int, like: Any, make: Any) -> Any:
        """A descriptor like another, of memory elsewhere."""
        if len(self.copies) >= _MOST:
            self.copies.clear()
        descriptor = copy(like)
        descriptor.base = _At(start + beyond)
        if make:
            descriptor = make(descriptor)[0]
        self.copies[place, start] = descriptor
        return descriptor


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


# Starting a kernel of a known signature

_PLAIN = {int, bool, float, str, tuple, type(None)}  # named tuples count as well


class _Watch(threading.local):
    """Of each thread, `by`: who is told of each launch (recorder.Recorder), or None."""

    by: Any = None


watch = _Watch()


class Direct:
    """A Triton or Gluon kernel: direct(kernel)[grid](…) does what kernel[grid](…) does.

    What Triton compiled is remembered by all that it looked at: dtypes of tensors that begin at
    multiples of 16 bytes, and every other argument's value; of whole numbers that the kernel is not
    specialized for, how wide they are. Arguments that are neither numbers, texts nor tuples of such
    count by identity, and are kept, so that no other can have theirs.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.any_value = _any_value(kernel)
        self.compiled: dict[Any, tuple[Any, Any]] = {}

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return partial(self._start, grid)

    def _start(self, grid: tuple[int, ...], *arguments: Any, **keywords: Any) -> None:
        key = None if interpreting() else _kind(arguments, keywords, self.any_value)
        compiled, _ = self.compiled.get(key, (None, None)) if key else (None, None)
        rest = [keywords[name] for name in self.kernel.arg_names[len(arguments) :]]
        whole = (*grid, 1, 1)[:3]
        if compiled is not None:
            compiled[whole](*arguments, *rest)
        else:
            compiled = self.kernel[grid](*arguments, **keywords)
            if key:
                if len(self.compiled) >= _MOST:
                    self.compiled.clear()
                selection = [
                    each for each in (*arguments, *keywords.values()) if _by_identity(each)
                ]
                self.compiled[key] = compiled, selection
        if watch.by is not None:
            watch.by.after_launch(compiled if key else None, whole, (*arguments, *rest))


def _any_value(kernel: Any) -> frozenset[int]:
    """The places of the arguments whose values Triton does not look at: do_not_specialize."""
    names = getattr(kernel, "do_not_specialize", None)
    if names is None:  # the interpreter's
        names = getattr(kernel, "kwargs", {}).get("do_not_specialize") or ()
    places = {name: place for place, name in enumerate(kernel.arg_names)}
    return frozenset(places.get(each, each) for each in names)


def _kind(
    arguments: tuple[Any, ...], keywords: dict[str, Any], any_value: frozenset[int] = frozenset()
) -> tuple[Any, ...] | None:
    """What tells calls of a kernel apart; None where a tensor begins elsewhere.

    any_value: which arguments are whole numbers whose values say nothing
    """
    kind: list[Any] = [torch.cuda.current_device()]
    for number, each in enumerate((*arguments, *keywords.values())):
        if type(each) is int and number in any_value and number < len(arguments):
            kind.append("i32" if -(1 << 31) <= each < 1 << 31 else "i64")
        elif isinstance(each, Tensor):
            if each.data_ptr() % 16:
                return None
            kind.append(each.dtype)
        elif type(each) in _PLAIN or isinstance(each, tuple):
            kind.append(each)
        elif hasattr(each, "block_shape"):  # a tensor descriptor: the base is aligned
            kind.append((each.base.dtype, *each.block_shape))
        else:
            kind.append(id(each))
    return tuple(kind)


def _by_identity(argument: Any) -> bool:
    """Whether `_kind` tells it from others by its identity."""
    has_memory = isinstance(argument, Tensor | tuple) or hasattr(argument, "block_shape")
    return not has_memory and type(argument) not in _PLAIN


_known: dict[int, Direct] = {}  # by identity: a kernel's own hash is of its source


def direct(kernel: Any) -> Direct:
    """The one Direct of a kernel of some module."""
    entry = _known.get(id(kernel))
    if entry is None:
        entry = _known[id(kernel)] = Direct(kernel)
    return entry


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up. Triton's own takes the host a hundred times as long."""
    return -(-a // b)


def power_of_2(n: int) -> int:
    """The least power of two that is n or more."""
    return 1 << max(n - 1, 0).bit_length()
