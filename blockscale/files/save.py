# SPDX-License-Identifier: BSD-3-Clause
"""Write a model to a file of ours (docs/files.md)."""

from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.fx import GraphModule

from blockscale.core.untrusted import kind_of
from blockscale.files.header import order_metadata
from blockscale.files.metadata import Metadata, TensorInfo
from blockscale.files.whole import check_place, written_whole
from blockscale.graph.pickled import State
from blockscale.graph.preparation import Prepared
from blockscale.layers.guards import check_model, check_unsharded
from blockscale.layers.layer import QBias, QLayer
from blockscale.layers.model import folded_norms, without_wrappers
from blockscale.layers.store import QWeight, all_held
from blockscale.qat.layers import QATLayer


def save(model: nn.Module, path: str | Path) -> None:
    """Write a model's state, quantized and float, to the safetensors file `path`.

    Tensors that the model holds under several names are written once. Names are the plain model's,
    also if it is compiled or parallel (layers.model.wrapped). The file appears whole or not at all:
    it is written beside `path` and renamed. Raises ValueError if `path` is a directory, or the
    model is prepared and not converted, and OSError if it cannot be written.
    """
    check_model(model, "bs.save")
    check_unsharded(model, "bs.save")
    path = check_place(path, "model.safetensors")
    with without_wrappers(model) as plain:
        if isinstance(plain, QLayer):
            raise ValueError(
                f"{kind_of(plain)} by itself has no name for its weight: save the model it "
                f"is in, or wrap it, e.g. in nn.Sequential(layer)"
            )
        refuse_unfinished(plain)
        tensors, metadata = described_state(plain)
    with written_whole(path) as temporary:
        try:
            save_file(tensors, temporary, metadata.encode())
            order_metadata(temporary)
        except SafetensorError as error:  # a full disk among them
            raise OSError(f"{path} cannot be written: {error}") from error


def described_state(model: nn.Module) -> tuple[dict[str, Tensor], Metadata]:
    """Each tensor of a model's state once, and what a file of them says.

    Raises ValueError for a state that has something else, or tensors without data.
    """
    description = describe(model)
    tensors, aliases = _unique(model.state_dict(), description)
    return tensors, replace(description, aliases=description.aliases | aliases)


def describe(model: nn.Module) -> Metadata:
    """What a file of this model says of its quantized layers."""
    metadata = Metadata()
    first: dict[int, str] = {}
    for name, weight in all_held(model):
        _describe(metadata, first, name, weight)
        if weight.input is not None:
            metadata.layers[name] = {"input": weight.input.fmt}
    for name, layer in model.named_modules(remove_duplicate=False):
        if not isinstance(layer, QLayer):
            continue
        for part, quantized in (("weight", layer.qweight), ("bias", layer.quantized_bias)):
            if quantized is not None:
                _describe(metadata, first, f"{name}.{part}", quantized)
        parts = {"input": layer.input, "output": layer.output, "before": layer.before}
        formats = {part: each.fmt for part, each in parts.items() if each is not None}
        if formats:
            metadata.layers[name] = formats
    metadata.folded |= folded_norms(model)
    return metadata


def _describe(
    metadata: Metadata, first: dict[int, str], name: str, quantized: QWeight | QBias
) -> None:
    """One quantized tensor; `first` holds the names under which others were met first."""
    if first.setdefault(id(quantized), name) == name:
        dtype = str(quantized.dtype).removeprefix("torch.")
        metadata.tensors[name] = TensorInfo(
            quantized.fmt, tuple(quantized.shape), dtype, quantized.layout
        )
    else:
        metadata.aliases[name] = first[id(quantized)]


def spellings(metadata: Metadata) -> set[str]:
    """The entries of a state that hold formats, which the metadata has already."""
    parts = {f"{layer}.{part}" for layer, formats in metadata.layers.items() for part in formats}
    return {f"{name}._extra_state" for name in parts | set(metadata.tensors)}


def _unique(
    state: dict[str, Tensor], metadata: Metadata
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each tensor of a state once and contiguous, and {another name of it: that name}."""
    tied = tuple(f"{name}." for name in metadata.aliases)
    texts = spellings(metadata)
    first: dict[tuple[object, ...], str] = {}
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    for name, tensor in state.items():
        if (tied and name.startswith(tied)) or name in texts:
            continue
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{name} is {kind_of(tensor)}: a file holds only tensors")
        if tensor.layout is not torch.strided:
            kind = str(tensor.layout).removeprefix("torch.")
            raise ValueError(f"{name} is sparse ({kind}): a file holds dense tensors, to_dense()")
        if tensor.device.type == "meta":
            raise ValueError(f"{name} holds no data (meta device): load the weights before saving")
        place = (
            tensor.device,
            tensor.data_ptr(),
            tensor.dtype,
            tuple(tensor.shape),
            tensor.stride(),
        )
        if tensor.numel() and place in first:
            aliases[name] = first[place]
            continue
        first[place] = name
        tensors[name] = _apart(tensor)
    return tensors, aliases


def _apart(tensor: Tensor) -> Tensor:
    """The same numbers, contiguous and alone in their storage."""
    if tensor.device.type == "webgpu":  # whose tensors have no storage
        return tensor.cpu()
    if tensor.untyped_storage().nbytes() == tensor.nbytes:
        return tensor.contiguous()
    return tensor.clone(memory_format=torch.contiguous_format)


# Models that are on their way to a quantized one, and are not one yet: a file would not say so.


_OBSERVED = "_observed"  # where compat.torch_ao's prepare keeps what its convert needs


def refuse_unfinished(model: nn.Module) -> None:
    """Raise ValueError for a model that is prepared, for training or calibration, not converted;
    and for a graph that is converted, which no float model stands for."""
    for name, module in model.named_modules():
        where = f"{name} of this model" if name else "this model"
        if isinstance(module, Prepared):
            raise ValueError(
                f"{where} is a graph that is prepared and not converted: bs.graph.convert it first"
            )
        info = module.meta.get("blockscale") if isinstance(module, GraphModule) else None
        if isinstance(info, State) and info.stage != "imported":
            raise ValueError(
                f"{where} is a {info.stage} graph, whose codes mean something in its program "
                f"only: torch.export.save(torch.export.export(graph, example), path)"
            )
        if isinstance(module, QATLayer):
            raise ValueError(
                f"{where} is prepared for training and not converted: bs.convert(model) first, or "
                f"a copy of it (copy.deepcopy). To train on later, keep a checkpoint: "
                f"torch.save(model.state_dict(), path)"
            )
        if _OBSERVED in vars(module):
            raise ValueError(
                f"{where} is prepared for calibration and not converted: "
                f"blockscale.compat.torch_ao.convert it first"
            )
