# SPDX-License-Identifier: BSD-3-Clause
"""`bs.load` of files of every producer: a checkpoint seen as a stored model of ours."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from blockscale.core.pack import of_convolution, stored_shape
from blockscale.core.parse import parse
from blockscale.export.checkpoints.checkpoint import Checkpoint, Stored
from blockscale.export.checkpoints.opening import reader_of
from blockscale.files.load import load_opened
from blockscale.files.metadata import FileError, Metadata, TensorInfo
from blockscale.files.stored_model import StoredModel
from blockscale.layers.guards import check_whole
from blockscale.layers.kinds import quantized_class
from blockscale.ops.tensor import QTensor


@dataclass(frozen=True)
class CheckpointModel(StoredModel):
    """Stored tensors of ours, `name.codes` and so on, that are read from a checkpoint.

    places: {our stored name: where it comes from, and which part of it}; the part is empty for a
    tensor that is not quantized
    static: {our stored name: the tensor}, of layers' inputs
    """

    checkpoint: Checkpoint | None = None
    places: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    static: Mapping[str, Tensor] = field(default_factory=dict)

    def read(self, names: Sequence[str]) -> dict[str, Tensor]:
        """The tensors of these names; a weight is read once for all of its parts."""
        assert self.checkpoint is not None
        tensors: dict[str, Tensor] = {}
        whole: dict[str, QTensor | Tensor] = {}
        for name in names:
            if name in self.static:
                tensors[name] = self.static[name]
                continue
            source, part = self.places[name]
            if part == "order":
                order = self.checkpoint.order(source)
                assert order is not None
                tensors[name] = order.to(torch.int32)
                continue
            if source not in whole:
                whole = {source: self.checkpoint[source]}  # one at a time
            tensors[name] = _part(whole[source], part).reshape(self.kinds[name][1])
        return tensors


def _part(result: QTensor | Tensor, part: str) -> Tensor:
    if isinstance(result, Tensor):
        return result
    value = result.packed if part == "codes" else getattr(result.qparams, part)
    assert isinstance(value, Tensor)
    return value


def as_stored(model: nn.Module, checkpoint: Checkpoint) -> StoredModel:
    """A checkpoint whose names are the model's, as `bs.load` reads a file of ours.

    Raises FileError for weights that cannot be read.
    """
    _refuse_unread(checkpoint)
    metadata, places, kinds = Metadata(), {}, {}
    state = model.state_dict(keep_vars=True)
    for name, stored in checkpoint.stored.items():
        if stored.format is None:
            if not _left_out(name, checkpoint, state):
                places[name], kinds[name] = (name, ""), (stored.dtype, stored.shape)
            continue
        info = metadata.tensors[name] = _info(model, name, stored, state.get(name))
        for part, kind in info.parts().items():
            places[f"{name}.{part}"], kinds[f"{name}.{part}"] = (name, part), kind
        if checkpoint.has_order(name):
            layer = name.removesuffix(".weight")
            metadata.layers[layer] = {"before": "order"}
            place = f"{layer}.before.order"
            places[place] = (name, "order")
            kinds[place] = (torch.int32, (metadata.features(layer),))
    static = _inputs(checkpoint, metadata)
    kinds |= {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in static.items()}
    files = dict.fromkeys([*places, *static], checkpoint.path)
    return CheckpointModel(
        checkpoint.path, files, kinds, metadata,
        checkpoint=checkpoint, places=places, static=static,
    )  # fmt: skip


def _inputs(checkpoint: Checkpoint, metadata: Metadata) -> dict[str, Tensor]:
    """Say how the inputs of layers are quantized; {our stored name: what is static of them}."""
    static: dict[str, Tensor] = {}
    for layer, spelling in checkpoint.inputs.items():
        if f"{layer}.weight" in metadata.tensors:
            metadata.layers.setdefault(layer, {})["input"] = spelling
            parts = checkpoint.input_parts(layer)
            static |= {f"{layer}.input.{part}": tensor for part, tensor in parts.items()}
    return static


def _refuse_unread(checkpoint: Checkpoint) -> None:
    unread = {name: each.unread for name, each in checkpoint.stored.items() if each.unread}
    if unread:
        name, reason = next(iter(unread.items()))
        more = f", and {len(unread) - 1} more cannot be read" if len(unread) > 1 else ""
        raise FileError(f"{checkpoint.path}: {name}: {reason}{more}")


def _left_out(name: str, checkpoint: Checkpoint, state: Mapping[str, Tensor]) -> bool:
    """A bias of zeros, which GPTQ's packers write for layers that have none."""
    weight = name.removesuffix("bias") + "weight"
    stored = checkpoint.stored.get(weight)
    if name in state or not name.endswith(".bias") or stored is None or stored.format is None:
        return False
    bias: Any = checkpoint[name]
    return not bool(bias.any())


def _info(model: nn.Module, name: str, stored: Stored, target: Tensor | None) -> TensorInfo:
    """How a weight is stored: for a layer with its inputs first, transposed."""
    assert stored.format is not None
    layout, shape = _layout(model, name), stored.shape
    if layout == "transposed" and len(shape) == 2:
        return TensorInfo(stored.format, stored_shape(shape, layout), layout=layout)
    sizes = () if target is None else tuple(target.shape)
    if of_convolution(layout) and len(sizes) > len(shape) and stored_shape(sizes, layout) == shape:
        return TensorInfo(stored.format, sizes, layout=layout)
    if target is not None and tuple(target.shape) != shape and stored.flat:
        return _of_shape(stored.format, shape, tuple(target.shape))
    return TensorInfo(stored.format, shape)


def _layout(model: nn.Module, name: str) -> str:
    owner, _, attribute = name.rpartition(".")
    try:
        module = model.get_submodule(owner)
    except AttributeError:
        return "plain"
    kind = quantized_class(module)
    is_known = attribute == "weight" and kind is not None and kind.refuses(module) is None
    return kind.layout_of(module) if is_known and kind is not None else "plain"


def _of_shape(fmt: str, shape: tuple[int, ...], numbers: tuple[int, ...]) -> TensorInfo:
    """Groups that the file has as rows of a matrix, in the shape that the model has."""
    element, _, rest = fmt.partition(":")
    text = f"{element}:group{shape[-1]}:{rest.partition(':')[2]}"
    fits = prod(shape) == prod(numbers) and bool(numbers) and numbers[-1] % shape[-1] == 0
    return TensorInfo(str(parse(text)), numbers) if fits else TensorInfo(fmt, shape)


# `bs.load`: files and directories of ours, and of every producer that `bs.checkpoint` reads.


def load(model: nn.Module, path: str | Path) -> nn.Module:
    """Load a quantized model's file or directory into `model`, its float model; returns it.

    path: a file of `bs.save`, a directory of `blockscale quantize`, or what another producer wrote
        (docs/checkpoints.md), whatever `bs.checkpoint` reads, under the model's own names: a
        directory or file of safetensors, an ONNX file, an OpenVINO IR's .xml; or a GGUF file of a
        llama-like model, for the model that transformers has of it

    `model` is the float model as it was before quantization, on any device, also on "meta"; it may
    be compiled or parallel (layers.model.wrapped). Layers whose weights are quantized in the file
    are replaced by quantized layers with the file's own codes and scales, and batch norms that
    training folded into them by nn.Identity; everything else is copied. A weight whose owner cannot
    hold codes is dequantized, with a warning that names it.

    Raises FileError, and changes nothing, if the file is missing, truncated, of a newer version, of
    an unknown format, or of another model, and where it holds weights that cannot be read.
    """
    path = Path(path)
    check_whole(model, "bs.load")
    with _open(path) as result:

        def open_for(plain: nn.Module) -> StoredModel:
            if isinstance(result, StoredModel):
                return result
            return as_stored(plain, result.in_model(plain))

        return load_opened(model, open_for)


@contextmanager
def _open(path: Path) -> Iterator[StoredModel | Checkpoint]:
    """A stored model, of ours or in float, or a checkpoint of another producer."""
    module, evidence = reader_of(path)
    ours = module.own_model(path) if hasattr(module, "own_model") else None
    if ours is not None:
        yield ours
        return
    with module.reader(path, evidence) as checkpoint:
        for warning in checkpoint.warnings:
            warnings.warn(f"blockscale: {checkpoint.path}: {warning}", stacklevel=4)
        yield checkpoint.unquantized or checkpoint
