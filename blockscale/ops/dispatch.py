# SPDX-License-Identifier: BSD-3-Clause
"""Which calls need torch's dispatcher: it takes 5 µs, half of a call on a small tensor."""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from blockscale.core.torch_private import (
    disable_modes,
    dispatch_keys,
    dispatch_modes,
    forward_level,
    function_modes,
    innermost_transform,
    profiler_on,
    tracing_state,
)

_TENSORS = frozenset((Tensor, nn.Parameter))
_VALUES = frozenset((type(None), str, int, float, bool, torch.dtype))
_is_compiling = torch.compiler.is_compiling
_plain: set[int] = set()  # dispatch keys that were seen to be those of plain tensors, or fewer


def alone(args: tuple[Any, ...]) -> bool:
    """Whether the dispatcher would only pass the call on: no graph, gradient, mode or profiler.

    It takes 5 µs for that, half of a call on a small tensor.
    """
    if (
        _is_compiling()
        or dispatch_modes()
        or innermost_transform()
        or function_modes()
        or profiler_on()
        or tracing_state()
        or forward_level() >= 0
    ):
        return False
    grad = torch.is_grad_enabled()
    for arg in args:
        kind = type(arg)
        if kind in _VALUES:
            continue
        if kind not in _TENSORS:
            if kind is list and (
                _VALUES.issuperset(map(type, arg))  # sizes, mostly
                or all(_asks_nothing(each, grad) for each in arg)
            ):
                continue
            return False
        if dispatch_keys(arg).raw_repr() not in _plain and not _is_plain(arg):
            return False
        if grad and arg.requires_grad:
            return False
    return True


def _asks_nothing(arg: Any, grad: bool) -> bool:
    """As `alone` says of one argument."""
    if type(arg) in _VALUES:
        return True
    return type(arg) in _TENSORS and _is_plain(arg) and not (grad and arg.requires_grad)


def nothing_asked(keys: Any, args: tuple[Any, ...]) -> bool:
    """Whether a call that came to autograd with these dispatch keys only has to be passed on."""
    raw = keys.raw_repr()
    if raw not in _plain:
        first = args[0][0] if isinstance(args[0], list) else args[0]
        if any(raw & ~plain == 0 for plain in _plain_keys(first.device.type)):
            _plain.add(raw)  # nothing that plain tensors have not
        else:
            return False
    if forward_level() >= 0:
        return False
    if torch.is_grad_enabled():
        for arg in args:
            if isinstance(arg, Tensor):
                if arg.requires_grad:
                    return False
            elif type(arg) is list and any(getattr(e, "requires_grad", False) for e in arg):
                return False
    return True


def _is_plain(tensor: Tensor) -> bool:
    """Whether it has memory of its own and nothing is put off: strided, not negated, not 0."""
    keys = dispatch_keys(tensor).raw_repr()
    if keys not in _plain_keys(tensor.device.type):
        return False
    _plain.add(keys)
    return True


@cache
def _plain_keys(device: str) -> frozenset[int]:
    """The dispatch keys of such tensors, inside and outside of inference mode."""
    if device == "meta":
        return frozenset()
    found = set()
    for inference in (False, True):
        # without modes: under that of fake tensors, what torch makes here is no plain tensor
        with disable_modes(), torch.inference_mode(inference):
            found.add(dispatch_keys(torch.empty(0, device=device)).raw_repr())
    return frozenset(found)
