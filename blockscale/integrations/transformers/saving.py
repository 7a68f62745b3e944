# SPDX-License-Identifier: BSD-3-Clause
"""What `save_pretrained` writes of a quantized model: a blockscale file with the tensor names that
the model's checkpoints have.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    WeightTransform,
    rename_source_key,
    revert_weight_conversion,
)

from blockscale.core.untrusted import kind_of
from blockscale.files.metadata import QUANTIZERS, Metadata, TensorInfo
from blockscale.files.renaming_apart import SavingConversions, conversions_of
from blockscale.files.renaming_view import of_stack_of
from blockscale.files.save import describe, spellings
from blockscale.files.stored_model import StoredModel
from blockscale.layers.buffers import Buffers
from blockscale.layers.guards import check_unsharded
from blockscale.layers.parameters import of_experts

# A stored model under the names of the model that reads it.

Fused = dict[int, dict[str, list[tuple[str, TensorInfo]]]]


@dataclass(frozen=True, kw_only=True)
class Arriving(StoredModel):
    """A stored model under the names of the model that reads it; what was read is in memory."""

    source: StoredModel
    originals: dict[str, str] = field(default_factory=dict)  # {name here: name in the files}
    in_memory: dict[str, Tensor] = field(default_factory=dict)

    def read(self, names: Sequence[str]) -> dict[str, Tensor]:
        missing = {name: self.originals[name] for name in names if name not in self.in_memory}
        tensors = self.source.read(list(missing.values()))
        there = {name: self.in_memory[name] for name in names if name in self.in_memory}
        return there | {name: tensors[original] for name, original in missing.items()}

    def add(self, name: str, original: str) -> None:
        """A tensor of the files under a name of the model."""
        self.files[name] = self.source.files[original]  # type: ignore[index]
        self.kinds[name] = self.source.kinds[original]  # type: ignore[index]
        self.originals[name] = original

    def add_parts(self, name: str, original: str) -> None:
        """The codes and scales of a quantized tensor."""
        for part, stored in self.source.parts_of(original).items():
            self.add(f"{name}.{part}", stored)

    def add_layer(self, name: str, original: str) -> None:
        """What a layer's input goes through, and static scales."""
        for quantizer in QUANTIZERS:
            parts = self.source.quantizer_parts(f"{original}.{quantizer}")
            for part, stored in parts.items():
                self.add(f"{name}.{quantizer}.{part}", stored)
        for part, stored in self.source.before_parts(original).items():
            self.add(f"{name}.before.{part}", stored)

    def hold(self, name: str, tensor: Tensor) -> None:
        """A tensor that the model has already."""
        self.files[name] = self.path  # type: ignore[index]
        self.kinds[name] = (tensor.dtype, tuple(tensor.shape))  # type: ignore[index]
        self.in_memory[name] = tensor


class Renames:
    """What the tensors of files are called in a model.

    names: {the model's name: the files' name} of quantized tensors
    layers: the same of layers with formats or transforms
    lost_layers: layers of files whose formats the model has no place for
    """

    def __init__(self, model: Any, conversions: list[WeightTransform]):
        self._conversions = deepcopy(conversions)
        self._same = {id(new): old for new, old in zip(self._conversions, conversions, strict=True)}
        self._prefix, self._state = model.base_model_prefix, model.state_dict()
        self.names: dict[str, str] = {}
        self.layers: dict[str, str] = {}
        self.lost_layers: list[str] = []

    def of(self, name: str) -> tuple[str, WeightTransform | None, str | None]:
        """(the model's name of it, the converter that takes it, by which of its patterns)."""
        if name in self._state:
            return name, None, None
        renamings = [each for each in self._conversions if isinstance(each, WeightRenaming)]
        converters = [each for each in self._conversions if isinstance(each, WeightConverter)]
        new, pattern = rename_source_key(name, renamings, converters, self._prefix, self._state)
        takes = next((each for each in converters if pattern in each.source_patterns), None)
        return new, None if takes is None else self._same[id(takes)], pattern

    def metadata(self, source: StoredModel) -> tuple[Metadata, Fused]:
        """What the files say under the model's names; and {id of a converter: {pattern: the
        quantized tensors that it takes}}. Raises FileError if a part is missing or odd."""
        result, stored = Metadata(), source.metadata
        fused: Fused = {}
        for name in sorted(stored.tensors):
            source.parts_of(name)
            new, takes, pattern = self.of(name)
            if takes is not None and pattern is not None:
                fused.setdefault(id(takes), {}).setdefault(pattern, []).append(
                    (name, stored.tensors[name])
                )
            elif new in self._state:  # else transformers tells of it as unexpected
                result.tensors[new] = stored.tensors[name]
                self.names[new] = name
        for name, to in stored.aliases.items():
            alias, target = self.of(name)[0], self.of(to)[0]
            if target in result.tensors and alias in self._state:
                result.aliases[alias] = target
        stacks: dict[str, list[str]] = {}  # of layers that become one parameter
        for layer, formats in stored.layers.items():
            stack = layer in stored.tensors
            new, takes, _ = self.of(layer if stack else f"{layer}.weight")
            if takes is not None:
                stacks.setdefault(new, []).append(layer)
            elif new in result.tensors or new in result.aliases:
                own = new if stack else new.removesuffix(".weight")
                result.layers[own] = formats
                self.layers[own] = layer
        self._of_stacks(source, stacks, result)
        return result, fused

    def _of_stacks(
        self, source: StoredModel, stacks: dict[str, list[str]], result: Metadata
    ) -> None:
        """The formats of layers that become stacks of experts; others are `lost_layers`."""
        for new, layers in stacks.items():
            formats = of_stack_of(source, layers)
            if formats and of_experts(new):
                result.layers[new] = formats
            else:
                self.lost_layers += layers


def state_and_metadata(model: Any) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The state of a transformers model and what its files say of it.

    transformers renames the state after this, so the names in the metadata are renamed here.
    Raises ValueError for a model of which each process has a part.
    """
    check_unsharded(model, "save_pretrained")
    metadata = describe(model)
    quantized, tied = spellings(metadata), tuple(f"{name}." for name in metadata.aliases)
    state = {
        name: tensor
        for name, tensor in model.state_dict().items()
        if name not in quantized and not (tied and name.startswith(tied))
    }
    if others := [name for name, each in state.items() if not isinstance(each, Tensor)]:
        raise ValueError(f"{others[0]} is {kind_of(state[others[0]])}: a file holds tensors")
    state |= {name: each for name, each in _parts_elsewhere(model) if name in state}
    meta = [name for name, each in state.items() if each.device.type == "meta"]
    if meta and not {"cpu", "disk"} & set(getattr(model, "hf_device_map", {}).values()):
        raise ValueError(f"{meta[0]} holds no data (meta device): load the weights before saving")
    parts = [f"{name}.codes" for name in (*metadata.tensors, *metadata.aliases)]
    model._weight_conversions = without_splits(model, parts)
    return state, rename(metadata, stored_names(model, parts)).encode()


def _parts_elsewhere(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Codes and scales that accelerate keeps elsewhere, under the names that a state has. Other
    tensors that it keeps are read by transformers, when it writes them."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, Buffers):
            for name, part in module.present().items():
                if part is not None and module.own[name].is_meta:
                    yield f"{prefix}.{name}", part


def without_splits(model: Any, names: Sequence[str]) -> list[WeightTransform]:
    """The model's conversions but for those that would take codes apart: such parameters are stored
    as the model has them, fused. Exporters and later savings still find all of them."""
    whole = conversions_of(model)
    return SavingConversions([each for each in whole if not _splits(each, names)], whole)


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


def rename(metadata: Metadata, names: dict[str, str]) -> Metadata:
    """The same, of tensors that are stored under other names.

    names: {`weight.codes` in the model: in the files}
    """
    new = {old.removesuffix(".codes"): to.removesuffix(".codes") for old, to in names.items()}
    layers = {
        new[layer] if layer in new else new[f"{layer}.weight"].removesuffix(".weight"): formats
        for layer, formats in metadata.layers.items()
    }
    tensors = {new[name]: info for name, info in metadata.tensors.items()}
    aliases = {new[name]: new[to] for name, to in metadata.aliases.items()}
    return replace(metadata, tensors=tensors, layers=layers, aliases=aliases)
