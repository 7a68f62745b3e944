# SPDX-License-Identifier: BSD-3-Clause
"""Which stored tensor goes where in a model. Everything that does not fit is refused here."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from blockscale.core.arithmetic.sums import SumInteger
from blockscale.core.recipe import read_bias
from blockscale.files.metadata import FileError
from blockscale.files.stored_model import StoredModel
from blockscale.layers.decisions import looks_like_a_layer
from blockscale.layers.kinds import quantized_class
from blockscale.layers.layer import QLayer
from blockscale.layers.store import Holder


def refuse_quantized(model: nn.Module) -> None:
    """Raise FileError if the model has quantized layers: a file is loaded into a float model."""
    for name, module in model.named_modules():
        if isinstance(module, QLayer | Holder):
            raise FileError(
                f"{name or 'all'} of this model is quantized already: load the file into the "
                "float model"
            )


def shared_names(model: nn.Module) -> dict[str, list[str]]:
    """{name: all names of the same parameter, itself first}; tied weights have several."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {n: [n, *(o for o in group if o != n)] for group in names.values() for n in group}


Matches = dict[str, list[str]]  # {stored name: the model's names for it}


class Quantized(NamedTuple):
    """Where quantized tensors go: weights and biases of layers that can hold codes, parameters that
    are held where they are, and others."""

    weights: Matches
    biases: Matches
    parameters: Matches
    dense: Matches


def match_quantized(
    model: nn.Module, source: StoredModel, shared: dict[str, list[str]]
) -> Quantized:
    """Where each quantized tensor goes.

    Raises FileError for a tensor that the model has not, or not in this shape, and where the model
    ties what the file holds apart.
    """
    matches: Matches = {}
    owners: dict[str, str] = {}
    for name, info in source.metadata.tensors.items():
        parts = source.parts_of(name)  # raises FileError if a part is missing or odd
        tied = [n for n, original in source.metadata.aliases.items() if original == name]
        names = list(dict.fromkeys(each for n in (name, *tied) for each in shared.get(n, [n])))
        for each in names:
            _check_shape(source, each, _weight_shape(model, each), info.shape)
        if other := next((owners[each] for each in names if each in owners), None):
            others = source.parts_of(other)
            same = info == source.metadata.tensors[other]
            for part in parts if same else ():
                _check_equal(source, parts[part], others[part])
            if not same:
                _refuse_tie(source, name, other)
            continue
        owners |= dict.fromkeys(names, name)
        matches[name] = names
    return _by_place(model, source, matches)


def _by_place(model: nn.Module, source: StoredModel, matches: Matches) -> Quantized:
    result = Quantized({}, {}, {}, {})
    for name, names in matches.items():
        layout = source.metadata.tensors[name].layout
        if all(_holds(model, each, layout) for each in names):
            result.weights[name] = names
    layers = {_owner(each) for names in result.weights.values() for each in names}
    for name, names in matches.items():
        if name in result.weights:
            continue
        holds = all(each == f"{_owner(each)}.bias" and _owner(each) in layers for each in names)
        if holds:
            result.biases[name] = names
        elif all(_can_hold(model, source, each, name) for each in names):
            result.parameters[name] = names
        else:
            result.dense[name] = names
    return result


def _owner(name: str) -> str:
    """The layer of a parameter."""
    return name.rpartition(".")[0]


def match_floats(
    model: nn.Module, source: StoredModel, quantized: set[str], shared: dict[str, list[str]]
) -> dict[str, str]:
    """{model's name: stored name} of what is not quantized. Raises FileError on a misfit."""
    plain, aliases = source.plain(), source.metadata.aliases
    state = model.state_dict(keep_vars=True)
    matches: dict[str, str] = {}
    missing: list[str] = []
    for name, tensor in state.items():
        if name in quantized:
            continue
        names = dict.fromkeys(aliases.get(each, each) for each in shared.get(name, [name]))
        stored = [each for each in names if each in plain]
        if not stored:
            missing += [name] * (name not in source.absent)
            continue
        _check_shape(source, name, tuple(tensor.shape), source.kinds[stored[0]][1])
        _check_kind(source, stored[0], tensor)
        for other in stored[1:]:
            _check_equal(source, stored[0], other)
        matches[name] = stored[0]
    buffers = {name for name, _ in model.named_buffers()}  # also those that are not saved
    extra = sorted(plain - set(matches.values()) - set(state) - buffers)
    if missing or extra:
        raise FileError(
            f"{source.path} does not belong to this model: "
            f"{_some('it lacks', missing)}{_some('it has', extra)}build the model it was made "
            "from"
        )
    return matches


def _check_shape(
    source: StoredModel, name: str, shape: tuple[int, ...] | None, expected: tuple[int, ...]
) -> None:
    if shape is None:
        raise FileError(
            f"{source.path}: it has {name}, which this model does not have: build the model "
            "it was made from"
        )
    if shape != expected:
        raise FileError(
            f"{source.path}: {name} has shape {expected}, this model's has {shape}: build the "
            f"model it was made from"
        )


def _check_kind(source: StoredModel, name: str, tensor: Tensor) -> None:
    """Floating point goes into floating point, and nothing else does."""
    dtype = source.kinds[name][0]
    if dtype is None or dtype.is_floating_point != tensor.dtype.is_floating_point:
        raise FileError(
            f"{source.path}: {name} is {dtype or 'of an unknown dtype'}, this model's is "
            f"{tensor.dtype}: build the model it was made from"
        )


def _check_equal(source: StoredModel, a: str, b: str) -> None:
    """Two stored tensors that go to one place must be the same."""
    if a == b:
        return
    tensors = source.read([a, b])
    if not torch.equal(tensors[a], tensors[b]):
        _refuse_tie(source, a, b)


def _refuse_tie(source: StoredModel, a: str, b: str) -> None:
    raise FileError(
        f"{source.path}: {a} and {b} differ, but this model ties them: build the model it was "
        f"made from"
    )


def _weight_shape(model: nn.Module, name: str) -> tuple[int, ...] | None:
    owner, _, attribute = name.rpartition(".")
    try:
        value = getattr(model.get_submodule(owner), attribute)
    except AttributeError:
        return None
    return tuple(value.shape) if isinstance(value, Tensor) else None


def _holds(model: nn.Module, name: str, layout: str) -> bool:
    """Whether the owner of parameter `name` can be a quantized layer of this layout."""
    owner, _, attribute = name.rpartition(".")
    module = model.get_submodule(owner)
    kind = quantized_class(module)
    is_weight = bool(owner) and attribute == "weight" and kind is not None
    if not is_weight or kind is None or kind.refuses(module) is not None:
        return False
    return kind.layout_of(module) == layout


def _can_hold(model: nn.Module, source: StoredModel, name: str, stored: str) -> bool:
    """Whether the owner of parameter `name` reads it, and can read codes in its place."""
    owner, _, attribute = name.rpartition(".")
    module = model.get_submodule(owner)
    info = source.metadata.tensors[stored]
    is_parameter = attribute in module._parameters and not looks_like_a_layer(module)
    weight = not isinstance(read_bias(info.format), SumInteger) and len(info.shape) > 1
    return is_parameter and weight and source.before(owner) is None


def _some(verb: str, names: list[str]) -> str:
    text = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"{verb} {text}; " if names else ""
