"""Containers that have a quantized parameter of their own: it is no child to be called.

Codes are a submodule under the parameter's name, and nn.Sequential, nn.ModuleList and nn.ModuleDict
go through all of their submodules. These go through those that are children.
"""

from collections.abc import Iterator
from typing import Any

from torch import nn


class _Children:
    """`held_names` are the names of what is no child (parameters.hold.Holder)."""

    held_names: tuple[str, ...]
    _modules: dict[str, nn.Module]

    def _children(self) -> dict[str, nn.Module]:
        return {name: each for name, each in self._modules.items() if name not in self.held_names}

    def __len__(self) -> int:
        return len(self._children())


class Listed(_Children):
    """Of nn.Sequential and nn.ModuleList."""

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self._children().values())

    def __getitem__(self, index: Any) -> Any:
        """One child, or some in a container of torch's."""
        children = list(self._children().values())
        if not isinstance(index, slice):
            return children[index]
        some = children[index]
        return nn.Sequential(*some) if isinstance(self, nn.Sequential) else nn.ModuleList(some)


class Named(_Children):
    """Of nn.ModuleDict."""

    def __iter__(self) -> Iterator[str]:
        return iter(self._children())

    def __contains__(self, name: object) -> bool:
        return name in self._children()

    def keys(self) -> Any:
        """Of the children."""
        return self._children().keys()

    def values(self) -> Any:
        """The children."""
        return self._children().values()

    def items(self) -> Any:
        """(name, child)."""
        return self._children().items()


def going_through(kind: type[nn.Module]) -> tuple[type, ...]:
    """What a class of this kind is besides, when it holds a parameter."""
    if issubclass(kind, nn.Sequential | nn.ModuleList):
        return (Listed,)
    return (Named,) if issubclass(kind, nn.ModuleDict) else ()
