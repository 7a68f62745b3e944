# SPDX-License-Identifier: BSD-3-Clause
"""Calls that were made before are made again: a tenth of the time that Python takes to decide.

The second call of a kind is recorded (`recorder`), all later ones repeat that. A kind is what a
kernel's Python may decide by, and it may decide by nothing else:

* shapes and dtypes of tensors, the GPU they are on, and every argument that is no tensor;
* what never changes in a process: the GPU's properties, Triton's and torch's versions, variables of
  the environment that are read once;
* the tables of launch choices (tables.py), which call `forget`;
* what `also` says, such as variables that are read each time.

What it must not: numbers in tensors, flags of torch, other tensors than its arguments. The recorder
refuses what it can see of that. Tensors that do not begin at 16 bytes or are not contiguous go the
ordinary way, as do calls that someone watches: torch's modes, Triton's hooks.
"""

from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Any

import torch
import triton
from torch import Tensor
from torch.nn import Parameter

from blockscale.core.operand import Operand, Quantizer
from blockscale.core.torch_private import dispatch_modes
from blockscale.kernels.cuda.recording import Recorder, Recording
from blockscale.kernels.cuda.relaunch import watch

_MOST = 4096  # kinds of calls that are remembered of a kernel
_PLAIN = frozenset((type(None), str, int, float, bool, torch.dtype))
_OPERANDS = frozenset((Operand, Quantizer))
_ONCE = "called once"  # in the place of a recording; as is the reason why there can be none
_every: list["Replay"] = []


class Replay:
    """A kernel of the registry, whose calls are repeated where that can be.

    also: of the arguments, what else is decided by
    """

    def __init__(self, run: Callable[..., Any], also: Callable[..., Any] | None = None) -> None:
        self.run = run
        self.also = also
        self.recordings: dict[Any, Recording | str] = {}
        update_wrapper(self, run)
        _every.append(self)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """As the kernel."""
        if keywords or dispatch_modes():
            return self.run(*arguments, **keywords)
        tensors: list[Tensor] = []
        at: list[int] = []
        kind: list[Any] = [self.also(*arguments)] if self.also else []
        for argument in arguments:
            for each in argument if type(argument) in _OPERANDS else (argument,):
                sort = type(each)
                if sort is Tensor or sort is Parameter:
                    start = each.data_ptr()
                    if start % 16 or not each.is_contiguous():
                        return self.run(*arguments)
                    tensors.append(each)
                    at.append(start)
                    kind += (each.shape, each.dtype, each.get_device())
                elif sort in _PLAIN:
                    kind.append(each)
                elif sort is list and all(map(_begins, each)):  # further parts of an operand
                    tensors += each
                    at += [part.data_ptr() for part in each]
                    kind += [(part.shape, part.dtype, part.get_device()) for part in each]
                else:
                    return self.run(*arguments)
        key, recordings = tuple(kind), self.recordings
        recording = recordings.get(key)
        if type(recording) is Recording and not listening():
            return recording(tensors, at)
        if recording is _ONCE:
            return self._record(recordings, key, arguments, tensors)
        if recording is None:
            if len(recordings) >= _MOST:
                recordings.clear()
            recordings[key] = _ONCE
        return self.run(*arguments)

    def _record(
        self,
        recordings: dict[Any, Recording | str],
        key: Any,
        arguments: tuple[Any, ...],
        tensors: list[Tensor],
    ) -> Any:
        """The result, and the call's recording among those known when it began."""
        device = tensors[0].get_device()
        distinct = len({id(each) for each in tensors}) == len(tensors)
        hooks = triton.knobs.runtime.launch_enter_hook
        counts = hasattr(hooks, "add")  # not before Triton 3.5
        if device < 0 or not distinct or not counts or torch.is_autocast_enabled("cuda"):
            return self.run(*arguments)
        recorder = Recorder(tensors)
        before, watch.by = watch.by, recorder
        hooks.add(recorder.on_start)
        try:
            with recorder:
                result = self.run(*arguments)
        finally:
            watch.by = before
            hooks.remove(recorder.on_start)
        recordings[key] = recorder.recording(result, device)
        return result


def _begins(part: Any) -> bool:
    """Whether it is a tensor as recordings take it."""
    is_tensor = type(part) is Tensor or type(part) is Parameter
    return is_tensor and part.data_ptr() % 16 == 0 and part.is_contiguous()


def listening() -> bool:
    """Whether someone wants to know of every launch: triton.knobs.runtime.launch_enter_hook."""
    runtime = triton.knobs.runtime
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    return bool(getattr(enter, "calls", enter)) or bool(getattr(leave, "calls", leave))


def replay(
    also: Callable[..., Any] | None = None,
) -> Callable[[Callable[..., Any]], Replay]:
    """Decorator of a kernel function: its calls are repeated. also: see Replayed."""
    return partial(Replay, also=also)


def forget() -> None:
    """Decide anew, as after other launch choices were measured."""
    for each in _every:
        each.recordings = {}  # not emptied: a call that is being recorded decided before
