# SPDX-License-Identifier: BSD-3-Clause
"""Which observers take `power_of_2_scale`: ours, and classes made of a user's own."""

import copyreg
import functools
import inspect
from abc import ABCMeta
from typing import Any, cast

from torch.ao import quantization as ao
from torch.ao.quantization.observer import ObserverBase

from blockscale.compat.torch_ao import observers

OBSERVERS: dict[Any, Any] = {
    ao.MinMaxObserver: observers.MinMaxObserver,
    ao.MovingAverageMinMaxObserver: observers.MovingAverageMinMaxObserver,
    ao.PerChannelMinMaxObserver: observers.PerChannelMinMaxObserver,
    ao.MovingAveragePerChannelMinMaxObserver: observers.MovingAveragePerChannelMinMaxObserver,
    ao.HistogramObserver: observers.HistogramObserver,
    ao.PlaceholderObserver: observers.PlaceholderObserver,
}

_BARE: Any = observers.OfTorchAO  # for subclasses of torch.ao's bases alone
_CHOOSE_NOTHING = {  # torch.ao's and torchao's: nothing to be rounded
    "FixedQParamsObserver", "FixedQParamsFakeQuantize", "ReuseInputObserver",
    "NoopObserver", "RecordingObserver", "Identity",
}  # fmt: skip


def with_option(constructor: Any) -> Any:
    """A class of observers, with arguments (`with_args`) or without -> one that takes the option.

    torch.ao's and torchao's classes become ours of the same names. A user's subclass of one of
    them, or of their bases, becomes a subclass of it under its own name. Everything else is
    returned as it is: classes that take the option already, and those that choose no scale.
    """
    kind, arguments, calls = unwrap(constructor)
    result = _exchange(kind)
    return constructor if result is kind else wrap(result, arguments, calls)


def _exchange(kind: Any) -> Any:
    if not isinstance(kind, type) or issubclass(kind, observers.PowerOfTwoScale):
        return kind
    ours, bare, base = OBSERVERS, _BARE, ObserverBase
    if of_torchao(kind):
        from blockscale.compat.torch_ao import pt2e  # torchao is there, as its class is

        ours, bare, base = pt2e.OBSERVERS, pt2e.OfTorchao, pt2e.ObserverBase
    if kind in ours:
        return ours[kind]
    if not issubclass(kind, base) or inspect.isabstract(kind) or chooses_nothing(kind):
        return kind
    nearest: Any = next((ours[c] for c in kind.__mro__ if c in ours), bare)
    return _subclass(nearest, cast("Any", kind))


class _OptionType(ABCMeta):
    """The type of the classes below, by which pickle makes them again instead of importing them."""


@functools.cache
def _subclass(ours: Any, theirs: Any) -> Any:
    names = {name: getattr(theirs, name) for name in ("__doc__", "__module__", "__qualname__")}
    return _OptionType(theirs.__name__, (ours, theirs), names)


def _pickle(kind: Any) -> Any:
    """What pickle keeps of a class: how it was made, or the name of a user's subclass of it."""
    theirs = kind.__bases__[-1]
    return (with_option, (theirs,)) if with_option(theirs) is kind else kind.__qualname__


copyreg.pickle(_OptionType, _pickle)


def of_torchao(kind: Any) -> bool:
    """Whether it is one of torchao's classes or a subclass of one."""
    return isinstance(kind, type) and any(c.__module__.startswith("torchao.") for c in kind.__mro__)


def chooses_nothing(kind: Any) -> bool:
    """Whether it is one of the observers that have no scale to round, None included."""
    if kind is None:
        return True
    return isinstance(kind, type) and any(c.__name__ in _CHOOSE_NOTHING for c in kind.__mro__)


def unwrap(constructor: Any) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """What `with_args` and `with_callable_args` wrapped: the class, its arguments, their makers."""
    arguments: dict[str, Any] = {}
    calls: dict[str, Any] = {}
    while hasattr(constructor, "p") and hasattr(constructor, "callable_args"):  # a PartialWrapper
        arguments = {**constructor.p.keywords, **arguments}
        calls = {**constructor.callable_args, **calls}
        constructor = constructor.p.func
    return constructor, arguments, calls


def wrap(kind: Any, arguments: dict[str, Any], calls: dict[str, Any]) -> Any:
    """The constructor that `unwrap` takes apart."""
    result = kind.with_args(**arguments) if arguments else kind
    return result.with_callable_args(**calls) if calls else result
