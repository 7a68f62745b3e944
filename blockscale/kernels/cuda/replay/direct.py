# SPDX-License-Identifier: BSD-3-Clause
"""Starting a kernel past Triton's own way, which takes the host longer than all else of a call."""

import threading
from functools import partial
from typing import Any

import torch
from torch import Tensor

from blockscale.kernels.cuda import interpreting

_MOST = 4096  # kinds of calls that are remembered of a kernel
_PLAIN = {int, bool, float, str, tuple, type(None)}  # named tuples count as well


class _Watch(threading.local):
    """Of each thread, `by`: who is told of each launch (recorder.Recorder), or None."""

    by: Any = None


watch = _Watch()


class Direct:
    """A Triton or Gluon kernel: direct(kernel)[grid](…) does what kernel[grid](…) does.

    What Triton compiled is remembered by all that it looked at: dtypes of tensors that begin at
    multiples of 16 bytes, and every other argument's value. Arguments that are neither numbers,
    texts nor tuples of such count by identity, and are kept, so that no other can have theirs.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.compiled: dict[Any, tuple[Any, Any]] = {}

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return partial(self._start, grid)

    def _start(self, grid: tuple[int, ...], *arguments: Any, **named: Any) -> None:
        key = None if interpreting() else _kind(arguments, named)
        compiled, _ = self.compiled.get(key, (None, None)) if key else (None, None)
        rest = [named[name] for name in self.kernel.arg_names[len(arguments) :]]
        whole = (*grid, 1, 1)[:3]
        if compiled is not None:
            compiled[whole](*arguments, *rest)
        else:
            compiled = self.kernel[grid](*arguments, **named)
            if key:
                if len(self.compiled) >= _MOST:
                    self.compiled.clear()
                kept = [each for each in (*arguments, *named.values()) if _by_identity(each)]
                self.compiled[key] = compiled, kept
        if watch.by is not None:
            watch.by.launched(compiled if key else None, whole, (*arguments, *rest))


def _kind(arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...] | None:
    """What tells calls of a kernel apart; None where a tensor begins elsewhere."""
    kind: list[Any] = [torch.cuda.current_device()]
    for each in (*arguments, *named.values()):
        if isinstance(each, Tensor):
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
    described = isinstance(argument, Tensor | tuple) or hasattr(argument, "block_shape")
    return not described and type(argument) not in _PLAIN


_known: dict[int, Direct] = {}  # by identity: a kernel's own hash is of its source


def direct(kernel: Any) -> Direct:
    """The one Direct of a kernel of some module."""
    known = _known.get(id(kernel))
    if known is None:
        known = _known[id(kernel)] = Direct(kernel)
    return known


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up. Triton's own takes the host a hundred times as long."""
    return -(-a // b)


def power_of_2(n: int) -> int:
    """The least power of two that is n or more."""
    return 1 << max(n - 1, 0).bit_length()
