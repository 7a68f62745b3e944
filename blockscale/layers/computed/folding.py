# SPDX-License-Identifier: BSD-3-Clause
"""Computed weights of a model, folded while it is quantized: what is then a layer of ours has the
weight that was computed, and everything else computes its own as before."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from blockscale.core.ledger import Entry, Ledger
from blockscale.core.recipe import Recipe
from blockscale.layers.computed.plain import Computed, computed_in, computes, plain


@dataclass
class Fold:
    """A module of a model and the plain one that stands in its places for now."""

    names: tuple[str, ...]
    module: nn.Module
    stand_in: nn.Module
    kind: type[nn.Module]
    tensors: list[Computed]

    def named(self, name: str) -> list[Computed]:
        """What was computed of the layer, or of its parameter, that a ledger calls so."""
        own = self.names[0]
        return [each for each in self.tensors if name in (own, f"{own}.{each.name}")]

    def quantized_in(self, model: nn.Module) -> bool:
        """Whether the stand-in was replaced, or holds codes by now."""
        there = model.get_submodule(self.names[0])
        return there is not self.stand_in or type(there) is not self.kind


@dataclass
class Folding:
    """What is folded in a model."""

    folds: list[Fold] = field(default_factory=list)

    def told(self, ledger: Ledger) -> Ledger:
        """The ledger with a word on each folded layer, and the bytes that its parts had."""
        return replace(ledger, entries=[self._told(each) for each in ledger.entries])

    def _told(self, entry: Entry) -> Entry:
        for fold in self.folds:
            if entry.status == "quantized" and (tensors := fold.named(entry.name)):
                how = [f"{each.how} folded into the {each.name}" for each in tensors]
                parts = [part for each in tensors for part in each.trained]
                values = [each.value for each in tensors]
                return replace(
                    entry,
                    details="; ".join(filter(None, [entry.details, *how])),
                    elements=entry.elements
                    + _sum(parts, Tensor.numel)
                    - _sum(values, Tensor.numel),
                    bytes_before=entry.bytes_before + _sum(parts, _nbytes) - _sum(values, _nbytes),
                )
        return entry


def _sum(tensors: Iterable[Tensor], size: Callable[[Tensor], int]) -> int:
    return sum(map(size, tensors))


def _nbytes(tensor: Tensor) -> int:
    return tensor.nbytes


@contextmanager
def folded(
    model: nn.Module, wanted: Recipe | Callable[[str], bool], *, stay: bool = False
) -> Iterator[Folding]:
    """As long as this lasts, layers that compute their weight have it as a parameter.

    wanted: whether the layer of this name is to be folded; a recipe says so of what it quantizes.
    stay: whether those that were not quantized stay folded afterwards. Otherwise they are what they
        were, hooks and parts and all; so is the whole model if anything was raised.
    """
    if isinstance(wanted, Recipe):
        wanted = _quantized_by(wanted)
    folding = Folding(list(_folds(model, wanted)))
    for fold in folding.folds:
        _put(model, fold.names, fold.stand_in)
    try:
        yield folding
    except BaseException:
        for fold in folding.folds:
            _put(model, fold.names, fold.module)
        raise
    for fold in folding.folds:
        if stay or fold.quantized_in(model):
            _keep_handles(fold, model.get_submodule(fold.names[0]))
        else:
            _put(model, fold.names, fold.module)


def folded_for(model: nn.Module, names: Iterable[str]) -> AbstractContextManager[Folding]:
    """The layers that own tensors of these names are folded, and stay so unless anything is raised.

    names: of quantized tensors, as files have them
    """
    layers = {name.rpartition(".")[0] for name in names}
    return folded(model, layers.__contains__, stay=True)


def _quantized_by(recipe: Recipe) -> Callable[[str], bool]:
    return lambda name: recipe.decide(name)[0].weight is not None


def _folds(model: nn.Module, wanted: Callable[[str], bool]) -> Iterator[Fold]:
    places: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if name and computes(module):
            places.setdefault(module, []).append(name)
    for module, names in places.items():
        if all(map(wanted, names)) and (found := computed_in(module)):
            made = plain(module, found)
            yield Fold(tuple(names), module, made, type(made), found)


def _keep_handles(fold: Fold, layer: nn.Module) -> None:
    """The hooks that stay are removed by the handles that their owners have."""
    hooks = fold.module._forward_pre_hooks
    for tensor in fold.tensors:
        if tensor.hook is not None:
            del hooks[tensor.hook]
    object.__setattr__(layer, "_forward_pre_hooks", hooks)


def _put(model: nn.Module, names: tuple[str, ...], module: nn.Module) -> None:
    for name in names:
        parent, _, child = name.rpartition(".")
        model.get_submodule(parent)._modules[child] = module
