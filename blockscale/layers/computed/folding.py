"""Computed weights of a model, folded while it is quantized: what is then a layer of ours has the
weight that was computed, and everything else computes its own as before."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from torch import nn

from blockscale.core.ledger import Entry, Ledger
from blockscale.layers.computed.plain import Computed, computed_in, computes, plain


@dataclass
class Fold:
    """A module of a model and the plain one that stands in its places for now."""

    names: tuple[str, ...]
    module: nn.Module
    stand_in: nn.Module
    tensors: list[Computed]

    @property
    def told(self) -> str:
        """What a ledger says of it."""
        return "; ".join(f"{each.how} folded into the {each.name}" for each in self.tensors)


@dataclass
class Folding:
    """What is folded in a model."""

    folds: list[Fold] = field(default_factory=list)

    def told(self, ledger: Ledger) -> Ledger:
        """The ledger with a word on each folded layer, and the bytes that its parts had."""
        by_name = {fold.names[0]: fold for fold in self.folds}
        entries = [_told(each, by_name.get(each.name)) for each in ledger.entries]
        return replace(ledger, entries=entries)


def _told(entry: Entry, fold: Fold | None) -> Entry:
    if fold is None or entry.status != "quantized":
        return entry
    before = sum(p.nbytes for p in fold.module.parameters())
    children = sum(p.nbytes for c in fold.stand_in.children() for p in c.parameters())
    told = "; ".join(filter(None, [entry.details, fold.told]))
    return replace(entry, details=told, bytes_before=before - children)


@contextmanager
def folded(model: nn.Module, wanted: Callable[[str], bool]) -> Iterator[Folding]:
    """As long as this lasts, layers that compute their weight have it as a parameter.

    wanted: whether the layer of this name is to be folded.

    Afterwards those that are still there are what they were, hooks and parts and all; so is the
    whole model if anything was raised. Nothing computes the weights of what took a place meanwhile.
    """
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
        there = model.get_submodule(fold.names[0])
        if there is fold.stand_in:
            _put(model, fold.names, fold.module)
        else:
            _keep_handles(fold, there)


def _folds(model: nn.Module, wanted: Callable[[str], bool]) -> Iterator[Fold]:
    places: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if name and computes(module):
            places.setdefault(module, []).append(name)
    for module, names in places.items():
        if all(map(wanted, names)) and (found := computed_in(module)):
            yield Fold(tuple(names), module, plain(module, found), found)


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
