"""Put what a file or directory of ours holds into a freshly built float model."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from blockscale.core.layout import from_stored, stored_shape
from blockscale.core.parse import parse
from blockscale.core.recipe import Scheme
from blockscale.export.checkpoint import Checkpoint, open_checkpoint
from blockscale.export.metadata import FileError
from blockscale.ops.modules.layer import QLayer
from blockscale.ops.modules.store import QInput, QWeight
from blockscale.ops.plan import replacement
from blockscale.ops.tensor import QTensor, from_parts


def load(model: nn.Module, path: str | Path) -> nn.Module:
    """Load a file of `bs.save`, or a directory of `blockscale quantize`, into `model`; returns it.

    `model` is the float model as it was before quantization, on any device, also on "meta". Layers
    whose weights are quantized in the file are replaced by quantized layers; everything else is
    copied. A weight whose owner cannot hold codes is dequantized, with a warning that names it.

    Raises FileError, and changes nothing, if the file is missing, truncated, of a newer version, of
    an unknown format, or of another model.
    """
    checkpoint = open_checkpoint(path)
    shared = _shared_names(model)
    weights, dense = _match_quantized(model, checkpoint, shared)
    quantized = {each for names in (weights | dense).values() for each in names}
    floats = _match_floats(model, checkpoint, quantized, shared)
    changes = [_replace_layers(model, checkpoint, names, name) for name, names in weights.items()]
    changes += [_fill(model, checkpoint, name, stored) for name, stored in floats.items()]
    changes += [
        _fill_dense(model, checkpoint, name, each) for name in dense for each in dense[name]
    ]
    for change in changes:
        change()
    if dense:
        warnings.warn(
            f"blockscale: dequantized, because their modules cannot hold codes: {', '.join(dense)}",
            stacklevel=2,
        )
    return model


def _state(model: nn.Module) -> dict[str, Tensor]:
    """Every tensor of the model's state_dict, quantized layers' own buffers left out."""
    inside = tuple(f"{n}." for n, m in model.named_modules() if isinstance(m, QWeight | QInput))
    state = model.state_dict(keep_vars=True)
    return {name: t for name, t in state.items() if not (inside and name.startswith(inside))}


def _shared_names(model: nn.Module) -> dict[str, list[str]]:
    """{name: all names of the same parameter, itself first}; tied weights have several."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {n: [n, *(o for o in group if o != n)] for group in names.values() for n in group}


def _match_quantized(
    model: nn.Module, checkpoint: Checkpoint, shared: dict[str, list[str]]
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """{stored name: the model's names for it}, for layers that hold codes and for the others."""
    weights: dict[str, list[str]] = {}
    dense: dict[str, list[str]] = {}
    for name, info in checkpoint.metadata.tensors.items():
        checkpoint.parts_of(name)  # raises FileError if a part is missing or odd
        tied = [n for n, original in checkpoint.metadata.aliases.items() if original == name]
        names = list(dict.fromkeys(each for n in (name, *tied) for each in shared.get(n, [n])))
        for each in names:
            _check_shape(checkpoint, each, _weight_shape(model, each), info.shape)
        holds = all(_holds(model, each, info.layout) for each in names)
        (weights if holds else dense)[name] = names
    return weights, dense


def _check_shape(
    checkpoint: Checkpoint, name: str, found: tuple[int, ...] | None, expected: tuple[int, ...]
) -> None:
    if found is None:
        raise FileError(
            f"{checkpoint.path}: it has {name}, which this model has not: build the model it was "
            f"made from"
        )
    if found != expected:
        raise FileError(
            f"{checkpoint.path}: {name} has shape {expected}, this model's has {found}: build the "
            f"model it was made from"
        )


def _weight_shape(model: nn.Module, name: str) -> tuple[int, ...] | None:
    owner, _, attribute = name.rpartition(".")
    try:
        value = getattr(model.get_submodule(owner), attribute)
    except AttributeError:
        return None
    return tuple(value.shape) if isinstance(value, Tensor | QWeight) else None


def _holds(model: nn.Module, name: str, layout: str) -> bool:
    """Whether the owner of parameter `name` can be a quantized layer of this layout."""
    owner, _, attribute = name.rpartition(".")
    module = model.get_submodule(owner)
    kind = type(module) if isinstance(module, QLayer) else replacement(module)
    return bool(owner) and attribute == "weight" and kind is not None and kind.layout == layout


def _match_floats(
    model: nn.Module, checkpoint: Checkpoint, quantized: set[str], shared: dict[str, list[str]]
) -> dict[str, str]:
    """{model's name: stored name} of what is not quantized. Raises FileError on a misfit."""
    plain, aliases = checkpoint.plain(), checkpoint.metadata.aliases
    state = _state(model)
    found: dict[str, str] = {}
    missing: list[str] = []
    for name, tensor in state.items():
        if name in quantized:
            continue
        names = [aliases.get(each, each) for each in shared.get(name, [name])]
        stored = next((each for each in names if each in plain), None)
        if stored is None:
            missing.append(name)
        else:
            _check_shape(checkpoint, name, tuple(tensor.shape), checkpoint.kinds[stored][1])
            found[name] = stored
    buffers = {name for name, _ in model.named_buffers()}  # also those that are not saved
    extra = sorted(plain - set(found.values()) - set(state) - buffers)
    if missing or extra:
        raise FileError(
            f"{checkpoint.path} is not of this model: {_some('it lacks', missing)}"
            f"{_some('it has', extra)}build the model it was made from"
        )
    return found


def _some(verb: str, names: list[str]) -> str:
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"{verb} {shown}; " if names else ""


def _read_qtensor(checkpoint: Checkpoint, name: str) -> QTensor:
    info = checkpoint.metadata.tensors[name]
    parts = checkpoint.parts_of(name)
    tensors = checkpoint.read(list(parts.values()))
    fmt = parse(info.format)
    size = (stored_shape(info.shape, info.layout) or (1,))[-1]
    return from_parts(fmt, size, {part: tensors[stored] for part, stored in parts.items()})


def _replace_layers(
    model: nn.Module, checkpoint: Checkpoint, names: list[str], stored: str
) -> Callable[[], None]:
    """Read a quantized weight; returns what puts its layers into the model."""
    info = checkpoint.metadata.tensors[stored]
    q = _read_qtensor(checkpoint, stored)
    old = getattr(model.get_submodule(names[0].rpartition(".")[0]), "weight")  # noqa: B009
    device = torch.device("cpu") if old.device.type == "meta" else old.device
    weight = QWeight(q.to(device), info.shape, old.dtype, info.layout)
    layers = {name.rpartition(".")[0]: _layer(model, checkpoint, name, weight) for name in names}

    def change() -> None:
        for name, layer in layers.items():
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, layer)

    return change


def _layer(model: nn.Module, checkpoint: Checkpoint, name: str, weight: QWeight) -> nn.Module:
    owner = name.rpartition(".")[0]
    module: Any = model.get_submodule(owner)
    formats = {
        part: parse(text) for part, text in checkpoint.metadata.layers.get(owner, {}).items()
    }
    scheme = Scheme(weight.format, **formats)
    if isinstance(module, QLayer):
        raise FileError(f"{owner} of this model is quantized already: load into the float model")
    kind = replacement(module)
    assert kind is not None  # _holds
    layer = kind.from_float(module, weight, scheme)
    layer.take_place_of(module)
    for part in formats:
        quantizer = getattr(layer, part)
        stored = checkpoint.quantizer_parts(f"{owner}.{part}")
        if quantizer is not None and stored:
            tensors = checkpoint.read(list(stored.values()))
            quantizer.restore({p: tensors[n].to(weight.device) for p, n in stored.items()})
    return layer


def _fill(model: nn.Module, checkpoint: Checkpoint, name: str, stored: str) -> Callable[[], None]:
    return _set(model, name, checkpoint.read([stored])[stored])


def _fill_dense(
    model: nn.Module, checkpoint: Checkpoint, stored: str, name: str
) -> Callable[[], None]:
    info = checkpoint.metadata.tensors[stored]
    values = _read_qtensor(checkpoint, stored).dequantize()
    return _set(model, name, from_stored(values, info.layout, info.shape))


def _set(model: nn.Module, name: str, value: Tensor) -> Callable[[], None]:
    """What copies `value` into the parameter or buffer `name`, or takes its place on "meta"."""
    owner, _, attribute = name.rpartition(".")

    def change() -> None:
        module = model.get_submodule(owner)
        old = getattr(module, attribute)
        if old.device.type != "meta":
            with torch.no_grad():
                old.copy_(value)
        elif isinstance(old, nn.Parameter):
            new = nn.Parameter(value.to(old.dtype), old.requires_grad)
            for each in _shared_names(model)[name]:
                place, _, last = each.rpartition(".")
                setattr(model.get_submodule(place), last, new)
        else:
            setattr(module, attribute, value.to(old.dtype))

    return change
