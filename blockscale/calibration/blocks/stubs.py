# SPDX-License-Identifier: BSD-3-Clause
"""Blocks that do not run while their model does: somebody else says what they give."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

# (the block's number, its arguments, its keyword arguments) -> what it gives
Enter = Callable[[int, tuple[Any, ...], dict[str, Any]], Any]


class Stop(BaseException):
    """The model has run far enough. No Exception, so that a model's own code does not catch it."""


class NotWalkableError(Exception):
    """Why a chain of blocks cannot be run one block at a time. chain: its name."""

    def __init__(self, chain: str, reason: str):
        super().__init__(reason)
        self.chain = chain


class NotOnceError(Exception):
    """Why a block cannot be run once, halting before its layers."""


@contextmanager
def stubbed(blocks: Mapping[nn.Module, int], enter: Enter) -> Iterator[None]:
    """Every call of a block is `enter(number, args, kwargs)`, as long as this lasts.

    A block gets a class that derives from its own, so that attributes and isinstance are as they
    were; its hooks are those of the real calls and do not run.
    """
    old = {module: type(module) for module in blocks}
    try:
        for module, number in blocks.items():
            object.__setattr__(module, "__class__", _stub(type(module), number, enter))
        yield
    finally:
        for module, kind in old.items():
            object.__setattr__(module, "__class__", kind)


def _stub(kind: type[nn.Module], number: int, enter: Enter) -> type[nn.Module]:
    def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        del self
        return enter(number, args, kwargs)

    names = {"__call__": __call__, "__module__": kind.__module__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), names)
