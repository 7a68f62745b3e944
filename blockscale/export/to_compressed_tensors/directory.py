# SPDX-License-Identifier: BSD-3-Clause
"""The files of a model's directory: config.json, the weights in shards, what lay beside them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from blockscale.core.joined_weights import disagreement_text, groups
from blockscale.files.directory.output import absolute, check_names, check_target
from blockscale.files.metadata import TensorInfo
from blockscale.files.renaming_apart import Back
from blockscale.layers.layer import QLayer
from blockscale.layers.store import QInput, QWeight, all_held
from blockscale.ops.tensor import QTensor

SHARD = 5_000_000_000  # bytes, as transformers splits
_INDEX = "model.safetensors.index.json"


def check_directory(directory: str | Path) -> Path:
    """The absolute path of a directory that is to be written, before any work is done for it.

    Raises ValueError if it is a file or holds something, its parent is no directory or cannot be
    written, something is mounted there, or its name leaves no room for those of a run.
    """
    path = Path(directory)
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file: name a directory to write, e.g. {path}-quantized")
    if path.is_dir() and any(path.iterdir()):
        raise ValueError(f"{path} exists and is not empty: choose another, or remove it first")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{path.parent} is not a directory: create it first")
    goal = absolute(path)
    check_names(goal, (_INDEX,))
    check_target(goal, 0)
    return goal


def write(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write config.json and the weights, in one file or in shards of SHARD bytes."""
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    shards = _shards(tensors)
    metadata = {"format": "pt"}
    if len(shards) == 1:
        save_file(shards[0], folder / "model.safetensors", metadata)
        return
    where: dict[str, str] = {}
    for i, shard in enumerate(shards):
        name = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        save_file(shard, folder / name, metadata)
        where |= dict.fromkeys(shard, name)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (folder / _INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _shards(tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if shards[-1] and size + tensor.nbytes > SHARD:
            shards.append({})
            size = 0
        shards[-1][name] = tensor.detach().cpu().contiguous()
        size += tensor.nbytes
    return shards


# Layers that servers join (core.joined_weights): what they must agree in to be written.


class Numbers(NamedTuple):
    """What one layer that was joined keeps once: its outer scale, and that of a static input."""

    outer: Tensor | None
    input: Tensor | None
    zero: Tensor | None


def disagreements(layers: Mapping[str, QLayer]) -> list[str]:
    """Why layers cannot be written for servers that join them, a sentence for each group."""
    lines = []
    for group in groups(layers):
        numbers = {name: _numbers(layers[name]) for name in group}
        outers = {name: each.outer for name, each in numbers.items() if each.outer is not None}
        if _differ(list(outers.values())):
            lines.append(disagreement_text(outers))
        for what, part in (("static input scales", "input"), ("zero points of inputs", "zero")):
            some = {n: of for n, e in numbers.items() if (of := getattr(e, part)) is not None}
            if _differ(list(some.values())):
                last = ", ".join(name.rpartition(".")[2] for name in some)
                parent = group[0].rpartition(".")[0] or "the model"
                lines.append(
                    f"{last} of {parent} have different {what}, and servers that join these "
                    "layers keep only one: calibrate them on the same input, without "
                    "transforms of their own"
                )
    return lines


def sharing(layers: Mapping[str, QLayer]) -> dict[str, list[QTensor]]:
    """{layer: the weights that share its outer scale}, of layers that agree."""
    by_name: dict[str, list[QTensor]] = {}
    for group in groups(layers):
        some = [name for name in group if _numbers(layers[name]).outer is not None]
        weights = [layers[name].qweight.tensor for name in some]
        for name in some:
            by_name[name] = weights
    return by_name


def _numbers(layer: QLayer) -> Numbers:
    qparams, inputs = layer.qweight.qparams, layer.input
    outer = None if qparams is None or qparams.outer is None else qparams.outer
    outer = None if outer is None or outer.numel() != 1 else outer
    if inputs is None:
        return Numbers(outer, None, None)
    parts = inputs._buffers
    scale = parts["outer"] if parts["scale"] is None else parts["scale"]
    return Numbers(outer, scale, parts["zero_point"])


def _differ(numbers: list[Tensor]) -> bool:
    return any(not torch.equal(numbers[0].cpu(), each.cpu()) for each in numbers[1:])


# Quantized parameters that are no layer's weight: experts' stacks become a matrix for each
# expert, under the names that checkpoints of the model have; all else has no place.


class Matrix(NamedTuple):
    """A matrix of a stack: its weight [out, in], and how its input is quantized, if it is."""

    weight: QTensor
    input: QInput | None = None


def matrices(model: nn.Module, back: Back) -> tuple[dict[str, Matrix], dict[str, str]]:
    """{layer of a checkpoint: what it is}, and {parameter: why it has no place}."""
    qs: dict[str, Matrix] = {}
    reasons: dict[str, str] = {}
    for name, weight in all_held(model):
        pieces = back.quantized(name, _info(weight), _parts(weight))
        if not pieces or not all(stored.endswith(".weight") for stored in pieces):
            owner = type(model.get_submodule(name.rpartition(".")[0])).__name__
            apart = f", and in {weight.fmt} it cannot be split into matrices"
            reasons[name] = f"it is a parameter of {owner}, not the weight of an nn.Linear" + (
                apart * (len(weight.shape) > 2)
            )
            continue
        inputs = _inputs(name, weight, back)
        qs |= {
            stored.removesuffix(".weight"): Matrix(piece, inputs.get(stored))
            for stored, piece in pieces.items()
        }
    return qs, reasons


def _inputs(name: str, weight: QWeight, back: Back) -> dict[str, QInput]:
    """{stored name: how its input is quantized} of the pieces of a stack, if they are."""
    by = weight.input
    if by is None:
        return {}
    shape = [*weight.shape]
    shape[-1 if weight.layout == "plain" else -2] = 1
    numbers = torch.arange(shape[0]).reshape(-1, 1, 1).expand(shape)
    pieces = back.plain(name, numbers.contiguous())
    return {stored: by.of_matrix(int(piece.flatten()[0])) for stored, piece in pieces.items()}


def _info(weight: QWeight) -> TensorInfo:
    dtype = str(weight.dtype).removeprefix("torch.")
    return TensorInfo(weight.fmt, tuple(weight.shape), dtype, weight.layout)


def _parts(weight: QWeight) -> dict[str, Tensor]:
    q = weight.tensor
    own_parts = {part: each for part, each in q.qparams._asdict().items() if each is not None}
    return {"codes": q.packed} | own_parts
