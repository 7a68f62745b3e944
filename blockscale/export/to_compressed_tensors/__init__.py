# SPDX-License-Identifier: BSD-3-Clause
"""compressed-tensors: a directory that transformers and vLLM load."""

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from blockscale.export.to_compressed_tensors.directory import (
    Matrix,
    check_directory,
    disagreements,
    matrices,
    sharing,
    write,
)
from blockscale.export.to_compressed_tensors.schemes import (
    LayerScheme,
    UnsupportedError,
    expert_patterns,
    experts_note,
    input_note,
    scheme,
)
from blockscale.export.to_compressed_tensors.tensors import (
    input_tensors,
    layer_tensors,
    tensors_of,
)
from blockscale.files.directory.swap import whole_folder
from blockscale.files.renaming_apart import Back
from blockscale.layers.kinds import QLinear
from blockscale.layers.layer import QLayer
from blockscale.layers.store import all_held
from blockscale.qat.layers.layer import QATLayer

VERSION = "0.20.0"  # of compressed-tensors, whose layouts these are
_BFLOAT16 = (
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mxfp6-pack-quantized",
    "mxfp8-quantized",
)
_WIDE = (
    "transformers decodes this layout to bfloat16: load with dtype=torch.bfloat16, or with "
    "CompressedTensorsConfig(dequantize=True)"
)
_ZERO_POINTS = (
    "transformers (5.23) loads packed zero points only with "
    "CompressedTensorsConfig(dequantize=True)"
)


def compressed_tensors(model: nn.Module, directory: str | Path) -> None:
    """Write a directory in compressed-tensors' layout, which transformers and vLLM load.

    model: with quantized linear layers (bs.quantize_, bs.calibrate, bs.convert); config.json is
        that of a model of transformers, and of any other holds only how it is quantized
    directory: not there, or empty; it appears whole or not at all

    Codes, scales and zero points are written as the model holds them. Inputs with a static scale
    keep it; a dynamic one is chosen by the reader's own rule. Quantized biases become floats.
    Stacks of experts become a matrix for each expert, and all tensors have the names that
    checkpoints of the model have, as save_pretrained writes them.

    Raises ValueError, before anything is written, that names every layer and parameter that the
    layout has no place for, and why; warns where an nvfp4 scale has no exact reciprocal, and of
    layouts that transformers loads with settings of its own.
    """
    path = check_directory(directory)
    layers, back = _layers(model), Back(model)
    stacks, reasons = matrices(model, back)
    schemes = _schemes(layers, stacks, reasons)
    if info := disagreements(layers):
        raise ValueError(
            "servers would compute different numbers for these layers:"
            + "".join(f"\n  {line}" for line in info)
        )
    tensors, notes = _tensors(model, layers, schemes)
    tensors = _as_stored(tensors, model, back) | _of_stacks(stacks, schemes)
    notes |= {name: note for name in stacks if (note := experts_note(schemes[name]))}
    quantization = _quantization(model, schemes, back)
    config = _config(model) | {"quantization_config": quantization}
    with whole_folder(path, False) as folder:
        folder.mkdir()
        write(folder, config, tensors)
    for note in dict.fromkeys(notes.values()):
        names = [name for name, each in notes.items() if each == note]
        more = f" and {len(names) - 1} more" * (len(names) > 1)
        warnings.warn(f"blockscale: {names[0]}{more}: {note}", stacklevel=2)


def _layers(model: nn.Module) -> dict[str, QLayer]:
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a model, found {type(model).__name__}")
    modules = list(model.named_modules(remove_duplicate=False))
    if training := [name for name, part in modules if isinstance(part, QATLayer)]:
        raise ValueError(
            f"{training[0] or 'the model'} is a layer for training (bs.prepare_qat): call "
            f"bs.convert(model) first"
        )
    layers = {name: part for name, part in modules if isinstance(part, QLayer)}
    if not layers and next(all_held(model), None) is None:
        raise ValueError(
            "nothing in the model is quantized: bs.quantize_(model, recipe) first; a float model "
            "is written by its own save_pretrained"
        )
    if "" in layers:
        raise ValueError("a layer by itself has no name for its weight: wrap it in a model")
    if empty := [name for name, each in layers.items() if each.qweight.device.type == "meta"]:
        raise ValueError(f"{empty[0]} holds no data (meta device): load the weights first")
    return layers


def _schemes(
    layers: Mapping[str, QLayer], stacks: Mapping[str, Matrix], without: Mapping[str, str]
) -> dict[str, LayerScheme]:
    """The scheme of each layer. Raises ValueError that names all that have none.

    without: {parameter: why it has no place}
    """
    schemes: dict[str, LayerScheme] = {}
    reasons = [f"{name}: {reason}" for name, reason in without.items()]
    for name, (q, by) in stacks.items():
        try:
            fmt, static = (None, False) if by is None else (by.format, by.static)
            schemes[name] = scheme(q.format, fmt, static)
        except UnsupportedError as error:
            reasons.append(f"{name}: {error}")
    for name, layer in layers.items():
        try:
            schemes[name] = _scheme(layer)
        except UnsupportedError as error:
            reasons.append(f"{name}: {error}")
    if reasons:
        raise _refusal(reasons)
    return schemes


def _refusal(reasons: list[str]) -> ValueError:
    return ValueError(
        "compressed-tensors cannot store these layers:"
        + "".join(f"\n  {line}" for line in reasons)
        + "\nLeave them in float (the recipe's skip), or choose another format for them."
    )


def _scheme(layer: QLayer) -> LayerScheme:
    if type(layer) is not QLinear:
        raise UnsupportedError(
            f"its readers take only quantized nn.Linear, found {type(layer).__name__}"
        )
    if layer.output is not None:
        raise UnsupportedError("vLLM does not support quantized outputs")
    if layer.before is not None:
        raise UnsupportedError(
            f"{layer.before.fmt} is applied to its input: fold it into the model first"
        )
    inputs = layer.input
    if inputs is None:
        return scheme(layer.qweight.format, None, static=False)
    return scheme(layer.qweight.format, inputs.format, inputs.static)


def _tensors(
    model: nn.Module, layers: Mapping[str, QLayer], schemes: Mapping[str, LayerScheme]
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Every tensor of the files by its name, and {layer: what is not exact}."""
    tensors: dict[str, Tensor] = {}
    notes: dict[str, str] = {}
    reasons, parameters = [], (name for name, _ in all_held(model))
    own = tuple(f"{name}." for name in (*layers, *parameters))
    places: set[tuple[Any, ...]] = set()
    groups = sharing(layers)
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, Tensor) and not name.startswith(own):
            place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
            if tensor.numel() == 0 or place not in places:  # tied ones are tied again by the config
                tensors[name] = tensor.clone() if _is_part(tensor) else tensor
            places.add(place)
    for name, layer in layers.items():
        assert isinstance(layer, QLinear)
        try:
            parts, info = layer_tensors(layer, schemes[name], groups.get(name, ()))
        except UnsupportedError as error:
            reasons.append(f"{name}: {error}")
            continue
        if layer.bias is not None:
            bias = layer.added_bias()
            assert bias is not None
            parts["bias"] = bias.to(layer.qweight.dtype)
        tensors |= {f"{name}.{part}": tensor for part, tensor in parts.items()}
        if note := "; ".join(filter(None, [info, _reader(layer, schemes[name])])):
            notes[name] = note
    if reasons:
        raise _refusal(reasons)
    return tensors, notes


def _of_stacks(
    stacks: Mapping[str, Matrix], schemes: Mapping[str, LayerScheme]
) -> dict[str, Tensor]:
    """The tensors of matrices that were parts of stacks."""
    return {
        f"{name}.{part}": tensor
        for name, (q, by) in stacks.items()
        for part, tensor in (tensors_of(q, schemes[name])[0] | input_tensors(by)).items()
    }


def _as_stored(tensors: Mapping[str, Tensor], model: nn.Module, back: Back) -> dict[str, Tensor]:
    """The tensors of a model under the names, and in the pieces, that its checkpoints have."""
    plain = model.state_dict().keys()
    parts: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        parts |= back.plain(name, tensor) if name in plain else {back.name(name): tensor}
    return parts


def _reader(layer: QLinear, scheme: LayerScheme) -> str:
    """What has to be said of how transformers and vLLM load the layer."""
    lines = [_loads(layer, scheme), input_note(scheme)]
    return "; ".join(filter(None, lines))


def _loads(layer: QLinear, scheme: LayerScheme) -> str:
    if scheme.layout in _BFLOAT16 and layer.qweight.dtype != torch.bfloat16:
        return _WIDE
    packed = scheme.layout == "pack-quantized" and not scheme.weights["symmetric"]
    return _ZERO_POINTS * (packed and scheme.weights["strategy"] != "tensor")


def _is_part(tensor: Tensor) -> bool:
    return tensor.untyped_storage().nbytes() != tensor.nbytes


def _config(model: nn.Module) -> dict[str, Any]:
    """What config.json says of the model, as transformers writes it."""
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "to_dict"):
        return {}
    data: dict[str, Any] = config.to_dict()
    dtypes = {str(p.dtype).removeprefix("torch.") for p in model.parameters()}
    return (
        data
        | {"architectures": [type(model).__name__]}
        | ({"dtype": next(iter(dtypes))} if len(dtypes) == 1 else {})
    )


def _quantization(
    model: nn.Module, schemes: Mapping[str, LayerScheme], back: Back
) -> dict[str, Any]:
    """`quantization_config`: groups of layers of one scheme, and the linear layers of none."""
    groups: dict[str, tuple[LayerScheme, list[str]]] = {}
    for name, each in schemes.items():
        groups.setdefault(repr(each), (each, []))[1].append(name)
    one = len(groups) == 1
    config_groups = {
        f"group_{i}": {
            "targets": ["Linear"] if one else expert_patterns(_both_names(names, back)),
            "weights": each.weights,
            "input_activations": each.inputs,
            "output_activations": None,
            "format": each.layout,
        }
        for i, (each, names) in enumerate(groups.values())
    }
    layouts = {each.layout for each, _ in groups.values()}
    return {
        "quant_method": "compressed-tensors",
        "version": VERSION,
        "format": layouts.pop() if len(layouts) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "config_groups": config_groups,
        "ignore": _both_names((n for n, part in model.named_modules() if _is_linear(part)), back),
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }


def _both_names(names: Iterable[str], back: Back) -> list[str]:
    """Names in the model and in its checkpoints: readers look for either."""
    stored = ((n, back.name(f"{n}.weight").removesuffix(".weight")) for n in names)
    return list(dict.fromkeys(each for pair in stored for each in pair))


def _is_linear(part: nn.Module) -> bool:
    """Whether readers may have an nn.Linear for it: a matrix in float, as routers of experts have
    one, that is no table."""
    weight = part._parameters.get("weight")
    table = isinstance(part, nn.Embedding | nn.EmbeddingBag)
    return isinstance(part, nn.Linear) or (weight is not None and weight.ndim == 2 and not table)
