# SPDX-License-Identifier: BSD-3-Clause
"""What `save_pretrained` writes of a quantized model: a blockscale file, whose names are those that
the model's checkpoints have."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers.core_model_loading import (
    WeightConverter,
    WeightTransform,
    revert_weight_conversion,
)

from blockscale.files.metadata import Metadata
from blockscale.files.renaming.apart import conversions_of
from blockscale.files.save import describe, spellings
from blockscale.layers.buffers import Buffers


def state_and_metadata(model: Any) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The state of a transformers model and what its files say of it.

    transformers renames the state after this, so the names in the metadata are renamed here.
    """
    described = describe(model)
    held, tied = spellings(described), tuple(f"{name}." for name in described.aliases)
    state = {
        name: tensor
        for name, tensor in model.state_dict().items()
        if name not in held and not (tied and name.startswith(tied))
    }
    if kept := [name for name, each in state.items() if not isinstance(each, Tensor)]:
        raise ValueError(f"{kept[0]} is a {type(state[kept[0]]).__name__}: a file holds tensors")
    state |= {name: each for name, each in _offloaded(model) if name in state}
    meta = [name for name, each in state.items() if each.device.type == "meta"]
    if meta and not {"cpu", "disk"} & set(getattr(model, "hf_device_map", {}).values()):
        raise ValueError(f"{meta[0]} holds no data (meta device): load the weights before saving")
    parts = [f"{name}.codes" for name in (*described.tensors, *described.aliases)]
    model._weight_conversions = without_splits(model, parts)
    return state, renamed(described, stored_names(model, parts)).encode()


def _offloaded(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Codes and scales that accelerate keeps elsewhere, under the names that a state has. Other
    tensors that it keeps are read by transformers, when it writes them."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, Buffers):
            for name, part in module.present().items():
                if part is not None and module.get_buffer(name).is_meta:
                    yield f"{prefix}.{name}", part


def without_splits(model: Any, names: Sequence[str]) -> list[WeightTransform]:
    """The model's conversions but for those that would take codes apart: such parameters are stored
    as the model has them, fused."""
    return [each for each in conversions_of(model) if not _splits(each, names)]


def _splits(conversion: WeightTransform, names: Sequence[str]) -> bool:
    if not isinstance(conversion, WeightConverter):
        return False
    back = conversion.reverse_transform()
    return any(back.rename_source_key(name)[1] is not None for name in names)


def stored_names(model: Any, names: Sequence[str]) -> dict[str, str]:
    """{name in the model's state: name in its files}."""
    numbers = {name: torch.tensor(number) for number, name in enumerate(names)}
    back = revert_weight_conversion(model, numbers)
    return {names[int(number)]: stored for stored, number in back.items()}


def renamed(metadata: Metadata, names: dict[str, str]) -> Metadata:
    """The same, of tensors that are stored under other names.

    names: {`weight.codes` in the model: in the files}
    """
    new = {old.removesuffix(".codes"): to.removesuffix(".codes") for old, to in names.items()}
    layers = {
        new[f"{layer}.weight"].removesuffix(".weight"): formats
        for layer, formats in metadata.layers.items()
    }
    tensors = {new[name]: info for name, info in metadata.tensors.items()}
    aliases = {new[name]: new[to] for name, to in metadata.aliases.items()}
    return replace(metadata, tensors=tensors, layers=layers, aliases=aliases)
