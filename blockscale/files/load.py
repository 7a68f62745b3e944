# SPDX-License-Identifier: BSD-3-Clause
"""Put what a file or directory of ours holds into a freshly built float model."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from blockscale.core.arithmetic.sums import SumInteger
from blockscale.core.pack import from_stored, stored_shape, to_stored
from blockscale.core.parse import parse
from blockscale.core.recipe import Scheme, read_bias
from blockscale.core.torch_private import BatchNorm
from blockscale.core.untrusted import kind_of, shown
from blockscale.files.match import (
    Matches,
    match_floats,
    match_quantized,
    refuse_quantized,
    shared_names,
)
from blockscale.files.metadata import FileError
from blockscale.files.renaming_moves import Move, Moves, left_to_model, moves_of, of_transformers
from blockscale.files.renaming_view import View
from blockscale.files.stored_model import OpenFiles, StoredModel, open_stored_model
from blockscale.layers.apply import swap
from blockscale.layers.computed import folded_for
from blockscale.layers.guards import check_whole, ordinary_tensors, replacing
from blockscale.layers.held_parameters import hold
from blockscale.layers.kinds import quantized_class
from blockscale.layers.layer import QBias, QLayer
from blockscale.layers.model import (
    announce,
    let_embeddings_be_resized,
    sent_by_no_forward,
    stands_for_norm,
    tell_names,
    without_wrappers,
)
from blockscale.layers.store import QWeight, StackInput
from blockscale.ops.tensor import QTensor, from_parts


def load(model: nn.Module, path: str | Path) -> nn.Module:
    """A file or directory of ours into its float model, as `export.checkpoints.loading` says."""
    return load_opened(model, lambda _: open_stored_model(path))


def load_opened(model: nn.Module, open_for: Callable[[nn.Module], StoredModel]) -> nn.Module:
    """`load` of what `open_for` gives for the model itself; whatever is raised, it is unchanged."""
    check_whole(model, "bs.load")
    with without_wrappers(model) as plain, ordinary_tensors(), replacing(plain, "bs.load"):
        refuse_quantized(plain)
        with OpenFiles() as open_files:
            fill(plain, view_for(plain, replace(open_for(plain), held=open_files)))
    return model


def fill(model: nn.Module, source: StoredModel) -> nn.Module:
    """`load` from what was opened, in the model's own names."""
    refuse_quantized(model)
    names = (*source.metadata.tensors, *source.metadata.aliases)
    with without_folded_norms(model, source), folded_for(model, names):
        dense = _put_in(model, source)
    tell_names(model)
    let_embeddings_be_resized(model)
    sent_by_no_forward(model)
    announce(model)
    _warn(model, source, dense)
    return model


def _put_in(model: nn.Module, source: StoredModel) -> Matches:
    """All that the file holds into the model, if everything fits; what had to be dequantized."""
    shared = shared_names(model)
    weights, biases, parameters, dense = match_quantized(model, source, shared)
    every = (weights | biases | parameters | dense).values()
    quantized = {each for names in every for each in names}
    floats = match_floats(model, source, quantized, shared)
    tensors = {
        each: bias
        for name, names in biases.items()
        for bias in [_for_model(model, source, names[0], name)]
        for each in names
    }
    outer_first = sorted(weights.items(), key=lambda item: min(n.count(".") for n in item[1]))
    changes = [_replace_layers(model, source, names, name, tensors) for name, names in outer_first]
    changes += [_hold(model, source, names, name) for name, names in parameters.items()]
    changes += [_set(model, name, source.read([stored])[stored]) for name, stored in floats.items()]
    changes += [_fill_dense(model, source, name, each) for name in dense for each in dense[name]]
    for change in changes:
        change()
    return dense


def _warn(model: nn.Module, source: StoredModel, dense: Matches) -> None:
    """Name what the model could not take as it is in the file, and what the file does not fill."""
    lines: list[str] = []
    names = [each for group in dense.values() for each in group]
    if names:
        lines.append(f"dequantized, because their modules cannot hold codes: {', '.join(names)}")
    owners = {name.removesuffix(".weight") for name in names}
    if without_formats := sorted(name for name in owners if source.metadata.formats(name)):
        lines.append(
            f"the formats of their input and output are not applied: {', '.join(without_formats)}"
        )
    empty = [name for name, buffer in model.named_buffers() if buffer.device.type == "meta"]
    skeleton = {each.device.type for each in model.parameters()} == {"meta"}
    if empty and not skeleton:  # of one that was asked for on meta nothing is missing
        lines.append(
            f"these buffers are in no file and are still on the meta device: {', '.join(empty)}"
        )
    if lines:
        warnings.warn(f"blockscale: {shown('; '.join(lines), 4000)}", stacklevel=3)


def _read(source: StoredModel, name: str) -> dict[str, Tensor]:
    parts = source.parts_of(name)
    tensors = source.read(list(parts.values()))
    return {part: tensors[stored] for part, stored in parts.items()}


def _read_qtensor(source: StoredModel, name: str) -> QTensor:
    info = source.metadata.tensors[name]
    size = (stored_shape(info.shape, info.layout) or (1,))[-1]
    return from_parts(parse(info.format), size, _read(source, name))


def read_quantized(
    source: StoredModel, stored: str, dtype: torch.dtype = torch.float32
) -> QWeight | QBias:
    """A quantized weight or bias, as a layer of this dtype holds it."""
    info = source.metadata.tensors[stored]
    fmt = read_bias(info.format)
    if isinstance(fmt, SumInteger):
        parts = _read(source, stored)
        return QBias(parts["codes"], parts["scale"], fmt, dtype)
    weight = QWeight(_read_qtensor(source, stored), info.shape, dtype, info.layout)
    if text := source.metadata.formats(stored).get("input"):  # of a stack of experts
        by = StackInput(parse(text))
        if places := source.quantizer_parts(f"{stored}.input"):
            tensors = source.read(list(places.values()))
            by.restore({part: tensors[name] for part, name in places.items()})
        weight.set_input(by)
    return weight


def _for_model(model: nn.Module, source: StoredModel, name: str, stored: str) -> QWeight | QBias:
    """The same, in place of the model's parameter `name`: of its dtype and on its device."""
    owner, _, attribute = name.rpartition(".")
    old: Tensor = getattr(model.get_submodule(owner), attribute)
    quantized = read_quantized(source, stored, old.dtype)
    quantized.name = name
    if quantized.codes.device.type == "meta":  # a skeleton is being filled from one
        return quantized
    return quantized.to(torch.device("cpu") if old.device.type == "meta" else old.device)


def _replace_layers(
    model: nn.Module,
    source: StoredModel,
    names: list[str],
    stored: str,
    biases: Mapping[str, QWeight | QBias],
) -> Callable[[], None]:
    """Read a quantized weight; returns what puts its layers into the model.

    biases: {the model's name of a quantized bias: what its layer is to hold}
    """
    weight = _for_model(model, source, names[0], stored)
    assert isinstance(weight, QWeight)  # no other has a layer that could hold it
    layers = {name.rpartition(".")[0]: _layer(model, source, name, weight) for name in names}
    for name, layer in layers.items():
        if (bias := biases.get(f"{name}.bias")) is not None:
            layer.set_bias(bias)

    def change() -> None:
        for name, layer in layers.items():
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, layer)

    return change


def _hold(
    model: nn.Module, source: StoredModel, names: list[str], stored: str
) -> Callable[[], None]:
    """Read a quantized parameter; returns what puts it where the model has it."""
    weight = _for_model(model, source, names[0], stored)
    assert isinstance(weight, QWeight)  # match_quantized asked

    def change() -> None:
        for name in names:
            owner, _, attribute = name.rpartition(".")
            hold(model.get_submodule(owner), attribute, weight)

    return change


def _layer(model: nn.Module, source: StoredModel, name: str, weight: QWeight) -> QLayer:
    owner = name.rpartition(".")[0]
    module: Any = model.get_submodule(owner)
    kind = quantized_class(module)
    assert kind is not None  # match_quantized asked
    layer = quantized_layer(source, owner, weight, partial(kind.from_float, module, weight))
    layer.take_place_of(module)
    return layer


def quantized_layer(
    source: StoredModel, owner: str, weight: QWeight, make: Callable[[Scheme], QLayer]
) -> QLayer:
    """What `make` gives for the stored layer `owner` with this weight, its quantizers filled and
    its transform in front. Raises FileError where they do not fit."""
    formats: Any = {part: parse(text) for part, text in source.metadata.formats(owner).items()}
    layer = make(Scheme(weight.format, **formats))
    for part in formats:
        quantizer = getattr(layer, part)
        stored = source.quantizer_parts(f"{owner}.{part}")
        if quantizer is not None and stored:
            tensors = source.read(list(stored.values()))
            quantizer.restore({p: tensors[n].to(weight.device) for p, n in stored.items()})
    before = source.before(owner)
    if before is not None:
        try:
            layer.set_before(before)
        except ValueError as error:
            raise FileError(f"{source.path}: {owner}: {error}") from None
    return layer


def _fill_dense(
    model: nn.Module, source: StoredModel, stored: str, name: str
) -> Callable[[], None]:
    values = read_quantized(source, stored).dequantize()
    is_ours = name in source.metadata.tensors or name in source.metadata.aliases
    owner, _, attribute = (name if is_ours else stored).rpartition(".")
    before = source.before(owner)
    if before is not None and attribute == "weight":
        info = source.metadata.tensors[stored]
        rows = before.from_weight(to_stored(values, info.layout))
        values = from_stored(rows, info.layout, info.shape)
    return _set(model, name, values)


def _set(model: nn.Module, name: str, value: Tensor) -> Callable[[], None]:
    """What copies `value` into the parameter or buffer `name`, or takes its place on "meta"."""
    owner, _, attribute = name.rpartition(".")

    def change() -> None:
        module = model.get_submodule(owner)
        old = getattr(module, attribute)
        if old.device.type != "meta":
            with torch.inference_mode() if old.is_inference() else torch.no_grad():
                old.copy_(value)
        elif isinstance(old, nn.Parameter):
            new = nn.Parameter(value.to(old.dtype), old.requires_grad)
            for each in shared_names(model)[name]:
                place, _, last = each.rpartition(".")
                setattr(model.get_submodule(place), last, new)
        else:
            setattr(module, attribute, value.to(old.dtype))

    return change


# A stored model as the model that it is loaded into calls and cuts its tensors.


def view_for(model: nn.Module, source: StoredModel) -> StoredModel:
    """`source` as `model` names and cuts its tensors: itself, where that is how they are stored.

    Only transformers models have other names, by transformers' own mapping. Codes and scales stay
    as they are; pieces whose codes cannot be kept are dequantized, with a warning that names them.

    Raises FileError if a part of a piece is missing or odd, or pieces do not fit together.
    """
    if not of_transformers(model):
        return source
    shapes: dict[str, tuple[int, ...]] = {}
    shapes |= {name: info.shape for name, info in source.metadata.tensors.items()}
    shapes |= {name: source.kinds[name][1] for name in source.plain()}
    aliases = source.metadata.aliases
    shapes |= {name: shapes[to] for name, to in aliases.items() if to in shapes}
    state = model.state_dict()
    absent = frozenset(left_to_model(model) - set(shapes))
    if all(name in state for name in shapes):
        return replace(source, absent=absent)
    try:
        moves = moves_of(model, shapes)
    except ImportError:  # a transformers that renames nothing while it loads
        return replace(source, absent=absent)
    view = View(model, source, {name: tensor.shape for name, tensor in state.items()})
    for move in moves.moves:
        view.add(move)
    for name in moves.unexpected_names:
        view.add(Move({name: (name,)}, name))
    _warn_renamed(view, moves)
    return replace(view.finish(), absent=absent - set(view.targets))


def _warn_renamed(view: View, moves: Moves) -> None:
    lines: list[str] = []
    if view.dense:
        lines.append(
            f"dequantized, because their codes cannot be joined as the model has them: "
            f"{_some(view.dense)}"
        )
    if view.without_place:
        lines.append(
            f"the formats of their input and output are not applied: {_some(view.without_place)}"
        )
    for why in dict.fromkeys(moves.ignorable.values()):
        names = [name for name in moves.ignorable if moves.ignorable[name] == why]
        lines.append(f"left out, because {why}: {_some(names)}")
    if lines:
        warnings.warn(f"blockscale: {'; '.join(lines)}", stacklevel=4)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"


# A float model as training left it: without the batch norms that it folded into convolutions.


@contextmanager
def without_folded_norms(model: nn.Module, source: StoredModel) -> Iterator[None]:
    """Put nn.Identity where the file has no batch norm, and a bias where its convolution got one.

    An error in the context puts everything back. Without one, the quantized layers remember what
    they include. Raises FileError for a model in which something else is in those places.
    """
    names = {name for name, _ in model.named_modules(remove_duplicate=False)}
    folded = {n: layer for n, layer in source.metadata.folded.items() if n in names}
    with ExitStack() as undo:
        identities = {
            norm: _without(model, source, norm, layer, undo) for norm, layer in folded.items()
        }
        yield
        undo.pop_all()
    for norm, identity in identities.items():
        layer = model.get_submodule(folded[norm])
        if isinstance(layer, QLayer):  # else its weight was dequantized, as _warn tells
            stands_for_norm(identity, layer)


def _without(
    model: nn.Module, source: StoredModel, name: str, layer: str, undo: ExitStack
) -> nn.Module:
    """What stands in the place of the batch norm `name` from now on."""
    norm, conv = model.get_submodule(name), _conv_of(model, source, name, layer)
    if type(norm) is nn.Identity:
        return norm
    if not isinstance(norm, BatchNorm) or norm.num_features != conv.out_channels:
        raise FileError(
            f"{source.path}: {name} is folded into {layer}, which has {conv.out_channels} outputs; "
            f"this model's {name} is {norm}: build the model it was made from"
        )
    names = [n for n, m in model.named_modules(remove_duplicate=False) if m is norm]
    identity = nn.Identity().train(norm.training)
    undo.callback(swap, model, swap(model, dict.fromkeys(names, identity)))
    if conv.bias is None:
        conv.bias = nn.Parameter(_room_for_bias(conv, source, f"{layer}.bias"))
        undo.callback(setattr, conv, "bias", None)
    return identity


def _conv_of(model: nn.Module, source: StoredModel, norm: str, name: str) -> Any:
    """The float convolution of a norm. Raises FileError if it cannot be quantized."""
    try:
        conv = model.get_submodule(name)
    except AttributeError:
        conv = None
    if conv is None or quantized_class(conv) is None or not hasattr(conv, "out_channels"):
        problem = "is missing" if conv is None else f"is {kind_of(conv)}"
        raise FileError(
            f"{source.path}: the batch norm {norm} is folded into {name}, which {problem} in this "
            f"model: build the model it was made from"
        )
    return conv


def _room_for_bias(conv: Any, source: StoredModel, name: str) -> torch.Tensor:
    """A bias on the weight's device, to be filled; in the file's dtype, as no other is known."""
    metadata = source.metadata
    stored = metadata.aliases.get(name, name)
    if stored in metadata.tensors:
        dtype = getattr(torch, metadata.tensors[stored].dtype)
    else:
        dtype = source.kinds.get(stored, (None, ()))[0] or conv.weight.dtype
    return torch.empty(conv.out_channels, dtype=dtype, device=conv.weight.device)
