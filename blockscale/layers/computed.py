# SPDX-License-Identifier: BSD-3-Clause
"""Weights that are computed at each call: normalized, pruned, parametrized. They are folded."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.prune import BasePruningMethod, PruningContainer
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from blockscale.core.ledger import Entry, Ledger
from blockscale.core.recipe import Recipe

# A layer whose weight is computed at each call -> one that has the weight it computes.
#
# Three ways to compute one: torch.nn.utils.parametrize (also parametrizations.weight_norm and
# spectral_norm), the hooks of torch.nn.utils.weight_norm and spectral_norm, and
# torch.nn.utils.prune.

_COPIED = ("_parameters", "_buffers", "_modules", "_forward_pre_hooks",
           "_forward_pre_hooks_with_kwargs", "_state_dict_hooks",
           "_load_state_dict_pre_hooks")  # fmt: skip
_METHODS = {"_WeightNorm": "weight_norm", "_SpectralNorm": "spectral_norm",
            "_Orthogonal": "orthogonal"}  # fmt: skip


class ComputedTensor(NamedTuple):
    """A tensor that a module computes: what says how, where its parts are, and its value."""

    name: str  # of the tensor, "weight"
    how: str  # "weight_norm"
    parts: tuple[str, ...]  # names of the parameters and buffers it is computed from
    hook: int | None  # the id of the hook that computes it, if one does
    value: Tensor
    trained: tuple[Tensor, ...]  # the parameters that it is computed from


def computed_in(module: nn.Module) -> list[ComputedTensor]:
    """The tensors that a module computes before each call, with the values that they have in
    evaluation; none for other modules, and none where two evaluations differ."""
    results = [*_of_parametrizations(module), *_of_hooks(module)]
    return results if _steady(results, module) else []


def computes(module: nn.Module) -> bool:
    """Whether it computes any of its tensors; nothing is evaluated."""
    if parametrize.is_parametrized(module):
        return True
    hooks = module._forward_pre_hooks.values()
    return any(isinstance(hook, WeightNorm | SpectralNorm | BasePruningMethod) for hook in hooks)


def plain(module: nn.Module, computed_tensors: list[ComputedTensor]) -> nn.Module:
    """The same module with these tensors as parameters; `module` stays as it is.

    Its other tensors, children and hooks are the module's own.
    """
    kind: Any = parametrize.type_before_parametrizations(module)
    value: Any = kind.__new__(kind)
    value.__dict__.update(module.__dict__)
    for part in _COPIED:
        value.__dict__[part] = getattr(module, part).copy()
    value._modules.pop("parametrizations", None)
    for tensor in computed_tensors:
        value.__dict__.pop(tensor.name, None)
        for name in tensor.parts:
            value._parameters.pop(name, None)
            value._buffers.pop(name, None)
        if tensor.hook is not None:
            value._forward_pre_hooks.pop(tensor.hook)
        value._parameters[tensor.name] = nn.Parameter(
            tensor.value, tensor.value.is_floating_point() and _trains(module)
        )
    _forget_norms(value)
    if isinstance(value, nn.RNNBase):
        value._init_flat_weights()
    return value  # type: ignore[no-any-return]


def _trains(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def _forget_norms(module: nn.Module) -> None:
    """Remove what spectral norms do to states: their vectors are gone."""
    for part in ("_state_dict_hooks", "_load_state_dict_pre_hooks"):
        hooks = getattr(module, part)
        for key, hook in list(hooks.items()):
            inner = getattr(hook, "hook", hook)
            if type(inner).__name__.startswith("SpectralNorm"):
                del hooks[key]


def _of_parametrizations(module: nn.Module) -> Iterator[ComputedTensor]:
    if not parametrize.is_parametrized(module):
        return
    lists: Any = module.parametrizations
    for name, steps in lists.items():
        how = [_METHODS.get(type(step).__name__, type(step).__name__) for step in steps]
        with evaluating(lists), torch.no_grad():
            value = getattr(module, name).detach().clone()
        yield ComputedTensor(name, ", ".join(how), (), None, value, tuple(steps.parameters()))


def _of_hooks(module: nn.Module) -> Iterator[ComputedTensor]:
    for key, hook in module._forward_pre_hooks.items():
        with torch.no_grad():
            if isinstance(hook, WeightNorm):
                name, ends = hook.name, ["_g", "_v"]
                value, how = hook.compute_weight(module), "weight_norm"
            elif isinstance(hook, SpectralNorm):
                name, ends, how = hook.name, ["_orig", "_u", "_v"], "spectral_norm"
                value = hook.compute_weight(module, do_power_iteration=False)
            elif isinstance(hook, BasePruningMethod):
                name, ends, how = hook._tensor_name, ["_orig", "_mask"], _pruning(hook)
                value = hook.apply_mask(module)  # type: ignore[no-untyped-call]
            else:
                continue
        parts = tuple(name + end for end in ends)
        trained = tuple(p for n, p in module._parameters.items() if n in parts and p is not None)
        yield ComputedTensor(name, how, parts, key, value.detach().clone(), trained)


def _pruning(hook: BasePruningMethod) -> str:
    methods = list(hook) if isinstance(hook, PruningContainer) else [hook]
    names = [type(method).__name__ for method in methods]
    return f"pruning ({', '.join(names)})"


def _steady(computed_tensors: list[ComputedTensor], module: nn.Module) -> bool:
    """Whether computing them again gives the same: a random one must go on being computed."""
    again = [*_of_parametrizations(module), *_of_hooks(module)] if computed_tensors else []
    return all(
        a.value.device.type == "meta" or torch.equal(a.value.nan_to_num(), b.value.nan_to_num())
        for a, b in zip(computed_tensors, again, strict=True)
    )


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """The module and all in it in evaluation as long as this lasts: spectral norms do not step."""
    modes = {each: each.training for each in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for each, mode in modes.items():
            each.training = mode


# Computed weights of a model, folded while it is quantized: what is then a layer of ours has the
# weight that was computed, and everything else computes its own as before.


@dataclass
class Fold:
    """A module of a model and the plain one that stands in its places for now."""

    names: tuple[str, ...]
    module: nn.Module
    stand_in: nn.Module
    kind: type[nn.Module]
    tensors: list[ComputedTensor]

    def of_layer(self, name: str) -> list[ComputedTensor]:
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

    def with_details(self, ledger: Ledger) -> Ledger:
        """The ledger with a word on each folded layer, and the bytes that its parts had."""
        return replace(ledger, entries=[self._with_note(each) for each in ledger.entries])

    def _with_note(self, entry: Entry) -> Entry:
        for fold in self.folds:
            if entry.status == "quantized" and (tensors := fold.of_layer(entry.name)):
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
    model: nn.Module, target: Recipe | Callable[[str], bool], *, stay: bool = False
) -> Iterator[Folding]:
    """As long as this lasts, layers that compute their weight have it as a parameter.

    wanted: whether the layer of this name is to be folded; a recipe says so of what it quantizes.
    stay: whether those that were not quantized stay folded afterwards. Otherwise they are what they
        were, hooks and parts and all; so is the whole model if anything was raised.
    """
    if isinstance(target, Recipe):
        target = _quantized_by(target)
    folding = Folding(list(_folds(model, target)))
    for fold in folding.folds:
        _set_module(model, fold.names, fold.stand_in)
    try:
        yield folding
    except BaseException:
        for fold in folding.folds:
            _set_module(model, fold.names, fold.module)
        raise
    for fold in folding.folds:
        if stay or fold.quantized_in(model):
            _keep_handles(fold, model.get_submodule(fold.names[0]))
        else:
            _set_module(model, fold.names, fold.module)


def folded_for(model: nn.Module, names: Iterable[str]) -> AbstractContextManager[Folding]:
    """The layers that own tensors of these names are folded, and stay so unless anything is raised.

    names: of quantized tensors, as files have them
    """
    layers = {name.rpartition(".")[0] for name in names}
    return folded(model, layers.__contains__, stay=True)


def _quantized_by(recipe: Recipe) -> Callable[[str], bool]:
    return lambda name: recipe.decide(name)[0].weight is not None


def _folds(model: nn.Module, target: Callable[[str], bool]) -> Iterator[Fold]:
    places: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if name and computes(module):
            places.setdefault(module, []).append(name)
    for module, names in places.items():
        if all(map(target, names)) and (result := computed_in(module)):
            output = plain(module, result)
            yield Fold(tuple(names), module, output, type(output), result)


def _keep_handles(fold: Fold, layer: nn.Module) -> None:
    """The hooks that stay are removed by the handles that their owners have."""
    hooks = fold.module._forward_pre_hooks
    for tensor in fold.tensors:
        if tensor.hook is not None:
            del hooks[tensor.hook]
    object.__setattr__(layer, "_forward_pre_hooks", hooks)


def _set_module(model: nn.Module, names: tuple[str, ...], module: nn.Module) -> None:
    for name in names:
        parent, _, child = name.rpartition(".")
        model.get_submodule(parent)._modules[child] = module
