# SPDX-License-Identifier: BSD-3-Clause
"""Parameters that a module holds by name, quantized in place, in recurrent layers too."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from blockscale.layers.store import Holder, QWeight, weights_of
from blockscale.layers.weight_source import ReadTensor, shared

# nn.LSTM, nn.GRU and nn.RNN whose weights are held in codes.
#
# torch's own forward runs, on all weights of the layer dequantized once a call. Inputs and states
# between steps stay in float: only weights have formats. Cells need nothing of this: their forward
# reads each weight as anybody does.


class _InputShape:
    """What nn.RNNBase.check_input asks a layer for."""

    def __init__(self, first: Tensor, input_size: int):
        self._flat_weights, self.input_size = [first], input_size


class Recurrent:
    """What replaces torch's own list of a recurrent layer's weights, which holds the parameters
    themselves: a list that is made when it is asked for."""

    @property
    def _flat_weights(self) -> list[Tensor]:
        names = self._flat_weights_names  # type: ignore[attr-defined]
        values = [getattr(self, name) for name in names]
        return [each.dequantize() if isinstance(each, ReadTensor) else each for each in values]

    @_flat_weights.setter
    def _flat_weights(self, value: Any) -> None:
        del value  # torch keeps its list up to date; this one is

    def _init_flat_weights(self) -> None:
        self.__dict__["_flat_weight_refs"] = []

    def _update_flat_weights(self) -> None:
        """Nothing: the list is up to date."""

    def flatten_parameters(self) -> None:
        """Nothing: the weights are no parameters that could lie together for cuDNN."""

    def _weights_have_changed(self) -> bool:
        return False

    def check_input(self, input: Tensor, batch_sizes: Tensor | None) -> None:
        """As torch's, which asks the first of the weights for its dtype, without all of them."""
        first = getattr(self, self._flat_weights_names[0])  # type: ignore[attr-defined]
        like: Any = _InputShape(first, self.input_size)  # type: ignore[attr-defined]
        nn.RNNBase.check_input(like, input, batch_sizes)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._init_flat_weights()


def parameters_gone(module: nn.Module) -> None:
    """Before a parameter goes: a recurrent layer's list of them would keep its floats."""
    if isinstance(module, nn.RNNBase):
        module.__dict__.pop("_flat_weights", None)
        module.__dict__["_flat_weight_refs"] = []


def parameters_again(module: nn.Module) -> None:
    """After parameters of a module came back: a recurrent layer lists them again."""
    if isinstance(module, nn.RNNBase) and not isinstance(module, Recurrent):
        module._init_flat_weights()


# Quantized parameters of any module: its own code reads them, and gets a WeightTensor.
#
# `hold` gives a module a class of its own, a subclass of the one it had with the same name, in
# which
# the parameter is a property. The codes are a submodule under the parameter's name, so that states
# and files have them as they have a layer's (`attention.in_proj_weight.codes`).


class CodesHolder(Holder):
    """What a module with quantized parameters is besides."""

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        state = self.__dict__.copy()
        return _restore, (self.float_class, self.held_names), state

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.held_names and (
            isinstance(value, Tensor) or not isinstance(value, QWeight)
        ):
            modules: dict[str, Any] = self.__dict__["_modules"]
            modules[name] = shared(modules[name], value)
        else:
            super().__setattr__(name, value)


def hold(module: nn.Module, name: str, weight: QWeight) -> None:
    """Put a quantized weight in the place of the parameter `name` of a module.

    Raises ValueError for a module that has no such parameter, or whose class is not Python's.
    """
    if module._parameters.get(name) is None:
        raise ValueError(f"{type(module).__name__} has no parameter {name!r} to quantize")
    if isinstance(module, torch.jit.ScriptModule):
        raise ValueError(
            f"{name}: the parameters of a ScriptModule cannot be replaced: quantize the "
            "module that it was compiled from"
        )
    del module._parameters[name]
    parameters_gone(module)
    of, names = _base(module), (*weights_of(module), name)
    module.__class__ = _class_of(of, tuple(sorted(names)))
    module._modules[name] = weight


def release(module: nn.Module, name: str) -> None:
    """Make a held weight a float parameter again, dequantized."""
    weight = weights_of(module)[name]
    names = tuple(sorted(set(weights_of(module)) - {name}))
    del module._modules[name]
    module.__class__ = _class_of(_base(module), names) if names else _base(module)
    module.register_parameter(name, nn.Parameter(weight.dequantize(), requires_grad=False))
    parameters_again(module)


def _base(module: nn.Module) -> type[nn.Module]:
    return module.float_class if isinstance(module, Holder) else type(module)


def _read(name: str) -> property:
    def get(self: Any) -> Tensor:
        weight: QWeight = self._modules[name]
        return weight.read()

    return property(get, doc=f"the quantized parameter {name}, read as a float tensor")


_classes: dict[tuple[type[nn.Module], tuple[str, ...]], type[nn.Module]] = {}  # a program has few


def _class_of(of: type[nn.Module], names: tuple[str, ...]) -> type[nn.Module]:
    entry = _classes.get((of, names))
    if entry is not None:
        return entry
    body: dict[str, Any] = {name: _read(name) for name in names}
    body |= {"held_names": names, "float_class": of, "__module__": of.__module__}
    body |= {"__qualname__": of.__qualname__, "__doc__": of.__doc__}
    lists = (Recurrent,) if issubclass(of, nn.RNNBase) else going_through(of)
    result: type[nn.Module] = type(of.__name__, (CodesHolder, *lists, of), body)
    return _classes.setdefault((of, names), result)


def _restore(of: type[nn.Module], names: tuple[str, ...]) -> nn.Module:
    """A module of that class without state, for pickle and copies."""
    module: nn.Module = of.__new__(_class_of(of, names))
    return module


# Containers that have a quantized parameter of their own: it is no child to be called.
#
# Codes are a submodule under the parameter's name, and nn.Sequential, nn.ModuleList and
# nn.ModuleDict go through all of their submodules. These go through those that are children.


class _Children:
    """`held_names` are the names of what is no child (store.Holder)."""

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
