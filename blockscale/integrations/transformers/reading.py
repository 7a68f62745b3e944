"""Read what a blockscale file holds through transformers' own loader.

The loader renames tensors, moves them to their devices and puts them into parameters. Codes and
scales are no parameters: they are collected here under the weight's name, for which the model gets
a stand-in. When everything is read and tied, quantized layers take the stand-ins' places, as in
`bs.load`.
"""

import re
import warnings
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.core_model_loading import (
    ConversionOps,
    WeightConverter,
    WeightRenaming,
    WeightTransform,
    rename_source_key,
)

from blockscale.core.layout import from_stored, stored_shape
from blockscale.core.parse import parse
from blockscale.files.header import sized
from blockscale.files.load import fill
from blockscale.files.match import match_quantized, shared_names
from blockscale.files.metadata import PARTS, QUANTIZERS, FileError, Metadata, TensorInfo
from blockscale.files.stored_model import StoredModel, read_headers
from blockscale.integrations.transformers.stand_in import TieMarks, stand_in, standing_in
from blockscale.ops.tensor import from_parts


@dataclass(frozen=True)
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

    def hold(self, name: str, tensor: Tensor) -> None:
        """A tensor that the model has already."""
        self.files[name] = self.path  # type: ignore[index]
        self.kinds[name] = (tensor.dtype, tuple(tensor.shape))  # type: ignore[index]
        self.arrived[name] = tensor


class Reading:
    """A model that is being read from files of ours.

    Raises FileError, before anything is read, for files that are not whole or not of this model.
    """

    def __init__(self, model: nn.Module, files: Sequence[str] | None):
        paths = [Path(file) for file in files or ()]
        path = paths[0] if len(paths) == 1 else paths[0].parent if paths else Path()
        self._source = read_headers(path, paths)
        if not self._source.metadata.tensors:
            raise FileError(
                f"{path}: config.json says that it is quantized by blockscale, but its files hold "
                f"no quantized tensor: remove quantization_config, or copy the directory again"
            )
        self._model = model
        self._marks = TieMarks(getattr(model, "all_tied_weights_keys", None) or {})
        self._ours: dict[int, WeightTransform | None] = {}  # {id of ours: what it stands for}
        self._dequantized: list[str] = []

    def conversions(self, old: list[WeightTransform]) -> list[WeightTransform]:
        """transformers' ways to rename and fuse the checkpoint's tensors, with ours among them.

        Raises FileError where a quantized tensor does not fit the model.
        """
        model, source = self._model, self._source
        renames = Renames(model, old)
        metadata, fused = renames.metadata(source)
        self._arriving = Arriving(source.path, {}, {}, metadata, source)
        for name, original in renames.names.items():
            _add_parts(self._arriving, name, original)
        for name, original in renames.layers.items():
            _add_layer(self._arriving, name, original)
        with standing_in(model):
            found = match_quantized(model, self._arriving, shared_names(model))
        self._dense = set(found.dense)
        new = [self._fused(each, fused.get(id(each), {})) for each in old]
        return new + [self._collects(attribute) for attribute in _attributes(metadata)]

    def _fused(
        self, old: WeightTransform, infos: dict[str, list[tuple[str, TensorInfo]]]
    ) -> WeightTransform:
        """A converter of the model's, whose sources are quantized in these files, dequantizes."""
        if not infos:
            return old
        told = {pattern: _only(pattern, each) for pattern, each in infos.items()}
        self._dequantized += [name for each in infos.values() for name, _ in each]
        sources = [
            source
            for pattern in old._original_source_patterns
            for source in (*(f"{pattern}.{part}" for part in PARTS), pattern)
        ]
        operations = [Dequantize(self, told), *old.operations]
        new = old.copy(sources, old._original_target_patterns, operations=operations)
        self._ours[id(new)] = old
        return new

    def _collects(self, attribute: str) -> WeightTransform:
        """Everything that is stored for a layer's `weight`, or another parameter, at once."""
        names = [f"{attribute}.{part}" for part in PARTS]
        if attribute == "weight":
            metadata = self._arriving.metadata
            layers = [f"{part}.{each}" for part in QUANTIZERS for each in PARTS]
            layers += ["before.factor", "before.signs"]
            used = {part for formats in metadata.layers.values() for part in formats}
            names += [name for name in layers if name.partition(".")[0] in used]
        sources = [rf"{re.escape(name)}$" for name in names]
        new = WeightConverter(sources, attribute, [Collect(self, dict(zip(sources, names, strict=True)))])
        self._ours[id(new)] = None
        return new

    def element_size(self, name: str) -> float | None:
        """Bytes of an element of the parameter `name` as it is stored, None if it is in float."""
        info = self._arriving.metadata.tensors.get(name)
        if info is None or name in self._dense:
            return None
        return sum(sized(*kind).nbytes for kind in info.parts().values()) / max(prod(info.shape), 1)

    def take(self, name: str, parts: dict[str, Tensor]) -> dict[str, Tensor]:
        """What was read for a parameter -> {name: what the model holds for it meanwhile}."""
        owner, _, attribute = name.rpartition(".")
        for part, tensor in parts.items():
            self._arriving.arrived[f"{owner}.{part}".lstrip(".")] = tensor
        prefix = f"{attribute}."
        own = {part.removeprefix(prefix): t for part, t in parts.items() if part.startswith(prefix)}
        if name not in self._arriving.metadata.tensors or "codes" not in own:
            return {}
        info = self._arriving.metadata.tensors[name]
        old = self._model.get_parameter(name)
        device = own["codes"].device
        if name in self._dense:  # `fill` writes the float values
            values = nn.Parameter(torch.empty(info.shape, dtype=old.dtype, device=device))
        else:
            values = stand_in(info.shape, old.dtype, device, self._marks.of(name, own))
        tied = [each for each, to in self._arriving.metadata.aliases.items() if to == name]
        return dict.fromkeys([name, *tied], values)

    def finish(self) -> None:
        """Put the quantized layers into the model, and transformers' conversions back."""
        model, metadata = self._model, self._arriving.metadata
        quantized = {*metadata.tensors, *metadata.aliases}
        for name, tensor in model.state_dict().items():
            if name not in quantized and isinstance(tensor, Tensor):
                self._arriving.hold(name, tensor)
        used: Any = getattr(model, "_weight_conversions", None) or []
        stand_for = [self._ours.get(id(each), each) for each in used]
        model._weight_conversions = [each for each in stand_for if each is not None]  # type: ignore[assignment]
        fill(model, self._arriving)
        if self._dequantized:
            told = ", ".join(sorted(set(self._dequantized)))
            warnings.warn(
                f"blockscale: dequantized, because their modules cannot hold codes: {told}",
                stacklevel=7,
            )


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

    def metadata(
        self, source: StoredModel
    ) -> tuple[Metadata, dict[int, dict[str, list[tuple[str, TensorInfo]]]]]:
        """What the files say under the model's names; and {id of a converter: {pattern: the
        quantized tensors that it takes}}. Raises FileError if a part is missing or odd."""
        told, found = Metadata(), source.metadata
        fused: dict[int, dict[str, list[tuple[str, TensorInfo]]]] = {}
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


def _add_parts(arriving: Arriving, name: str, original: str) -> None:
    for part, stored in arriving.source.parts_of(original).items():
        arriving.add(f"{name}.{part}", stored)


def _add_layer(arriving: Arriving, name: str, original: str) -> None:
    source = arriving.source
    for quantizer in QUANTIZERS:
        for part, stored in source.quantizer_parts(f"{original}.{quantizer}").items():
            arriving.add(f"{name}.{quantizer}.{part}", stored)
    for part, stored in source.before_parts(original).items():
        arriving.add(f"{name}.before.{part}", stored)


def _attributes(metadata: Metadata) -> list[str]:
    """`weight`, and whatever else the parameters are called that are quantized."""
    return sorted({name.rpartition(".")[2] for name in metadata.tensors})


def _only(pattern: str, infos: list[tuple[str, TensorInfo]]) -> TensorInfo:
    """How all tensors are stored that become parts of one. Raises FileError where they differ."""
    first = infos[0][1]
    if other := next((name for name, info in infos if info != first), None):
        raise FileError(
            f"{infos[0][0]} and {other} become one tensor of this model, but are stored in two "
            f"ways: quantize the checkpoint with one format for {pattern}"
        )
    return first


def dequantized(info: TensorInfo, parts: dict[str, Tensor]) -> Tensor:
    """A quantized tensor in float32, in its float shape."""
    size = (stored_shape(info.shape, info.layout) or (1,))[-1]
    values = from_parts(parse(info.format), size, parts).dequantize()
    return from_stored(values, info.layout, info.shape)


class Collect(ConversionOps):
    """The step that takes codes and scales where transformers reads floats.

    hf_quantizer: only that it is there says that dtypes are to be kept (`get_new_dtype`)
    names: {source pattern: what it is, e.g. `weight.codes`}
    """

    def __init__(self, reading: Reading, names: dict[str, str]):
        self.hf_quantizer, self._names = reading, names

    def __deepcopy__(self, memo: dict[int, Any]) -> "Collect":
        return Collect(self.hf_quantizer, self._names)

    def convert(  # type: ignore[override]
        self, input_dict: dict[str, list[Tensor]], full_layer_name: str, **_: Any
    ) -> dict[str, Tensor]:
        """{pattern: [tensor]} of one parameter -> {name: its stand-in}."""
        parts = {self._names[pattern]: tensors[0] for pattern, tensors in input_dict.items()}
        return self.hf_quantizer.take(full_layer_name, parts)


class Dequantize(ConversionOps):
    """The step before a model's own ones, which fuse floats."""

    def __init__(self, reading: Reading, infos: dict[str, TensorInfo]):
        self.hf_quantizer, self._infos = reading, infos

    def __deepcopy__(self, memo: dict[int, Any]) -> "Dequantize":
        return Dequantize(self.hf_quantizer, self._infos)

    def convert(  # type: ignore[override]
        self, input_dict: dict[str, list[Tensor]], model: Any, **_: Any
    ) -> dict[str, list[Tensor]]:
        """{pattern.part: [tensors]} -> {pattern: [float tensors]}, floats as they are."""
        dtype = model.config.dtype
        floats = {name: each for name, each in input_dict.items() if not self._part(name)}
        for pattern, info in self._infos.items():
            parts = {part: input_dict.get(f"{pattern}.{part}") for part in info.parts()}
            count = len(parts["codes"] or ())
            floats[pattern] = [
                dequantized(info, {part: each[i] for part, each in parts.items() if each}).to(dtype)
                for i in range(count)
            ]
        return floats

    def _part(self, name: str) -> bool:
        return any(name == f"{pattern}.{part}" for pattern in self._infos for part in PARTS)
