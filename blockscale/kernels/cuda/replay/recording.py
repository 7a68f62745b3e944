# SPDX-License-Identifier: BSD-3-Clause
"""What a kernel's Python did in one call (recorder.py), done again without it.

Tensors are numbered: a slot is such a number, and `at` and `tensors` are lists by it, of addresses
and, where torch needs them, of tensors. Memory is taken, kernels are started, and a few operations
of torch's own are done. What only kernels
see lies in one piece of memory. It comes as it is, also where torch would fill it to find bugs
(torch.utils.deterministic): nothing may be read of it that was not written.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from blockscale.core.torch_private import cuda_device, cuda_stream, empty_strided_cuda
from blockscale.kernels.cuda.replay.relaunch import Launch


@dataclass(frozen=True)
class Slot:
    """A tensor's number in a list; where a Slot stands among arguments, that tensor belongs."""

    number: int


@dataclass
class Repeat:
    """An operation of torch's own, with a Slot in the place of each tensor; out: a slot"""

    operation: Any
    arguments: tuple[Any, ...]
    named: dict[str, Any]
    out: int

    def __call__(self, at: list[int], tensors: list[Any], stream: int) -> None:
        """Do it again."""
        del stream
        arguments = [self._filled(each, tensors) for each in self.arguments]
        named = {name: self._filled(each, tensors) for name, each in self.named.items()}
        result = tensors[self.out] = self.operation(*arguments, **named)
        at[self.out] = result.data_ptr()

    @staticmethod
    def _filled(argument: Any, tensors: list[Any]) -> Any:
        return tensors[argument.number] if type(argument) is Slot else argument

    @property
    def reads(self) -> set[int]:
        """The slots that it needs as tensors."""
        every = (*self.arguments, *self.named.values())
        return {each.number for each in every if type(each) is Slot}


@dataclass(frozen=True)
class Memory:
    """What a tensor is, beside its numbers."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> "Memory":
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


@dataclass
class Take:
    """A new tensor, for operations of torch's own."""

    out: int
    memory: Memory

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

    def __call__(self, given: list[Tensor], at: list[int]) -> Any:
        """The result for other tensors of the same kind. at: their addresses, which is added to."""
        if current_device() != self.device:
            with torch.cuda.device(self.device):
                return self(given, at)
        new = self.slots - len(at)
        at += [0] * new
        tensors: list[Any] = [*given, *[None] * new]
        if self.scratch:
            held = take((self.scratch,), (1,), torch.uint8)
            start = held.data_ptr()
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
