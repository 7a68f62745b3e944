# SPDX-License-Identifier: BSD-3-Clause
"""A stored model under the names of the model that reads it."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    WeightTransform,
    rename_source_key,
)

from blockscale.files.metadata import QUANTIZERS, Metadata, TensorInfo
from blockscale.files.stored_model import StoredModel

Fused = dict[int, dict[str, list[tuple[str, TensorInfo]]]]


@dataclass(frozen=True, kw_only=True)
class Arriving(StoredModel):
    """A stored model under the names of the model that reads it; what has arrived is in memory."""

    source: StoredModel
    originals: dict[str, str] = field(default_factory=dict)  # {name here: name in the files}
    arrived: dict[str, Tensor] = field(default_factory=dict)

    def read(self, names: Sequence[str]) -> dict[str, Tensor]:
        missing = {name: self.originals[name] for name in names if name not in self.arrived}
        tensors = self.source.read(list(missing.values()))
        there = {name: self.arrived[name] for name in names if name in self.arrived}
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
        self.arrived[name] = tensor


class Renames:
    """What the tensors of files are called in a model.

    names: {the model's name: the files' name} of quantized tensors
    layers: the same of layers with formats or transforms
    """

    def __init__(self, model: Any, conversions: list[WeightTransform]):
        self._conversions = deepcopy(conversions)
        self._same = {id(new): old for new, old in zip(self._conversions, conversions, strict=True)}
        self._prefix, self._state = model.base_model_prefix, model.state_dict()
        self.names: dict[str, str] = {}
        self.layers: dict[str, str] = {}

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
        told, found = Metadata(), source.metadata
        fused: Fused = {}
        for name in sorted(found.tensors):
            source.parts_of(name)
            new, takes, pattern = self.of(name)
            if takes is not None and pattern is not None:
                fused.setdefault(id(takes), {}).setdefault(pattern, []).append(
                    (name, found.tensors[name])
                )
            elif new in self._state:  # else transformers tells of it as unexpected
                told.tensors[new] = found.tensors[name]
                self.names[new] = name
        for name, to in found.aliases.items():
            alias, target = self.of(name)[0], self.of(to)[0]
            if target in told.tensors and alias in self._state:
                told.aliases[alias] = target
        for layer, formats in found.layers.items():
            new = self.of(f"{layer}.weight")[0]
            if new in told.tensors or new in told.aliases:
                told.layers[new.removesuffix(".weight")] = formats
                self.layers[new.removesuffix(".weight")] = layer
        return told, fused
