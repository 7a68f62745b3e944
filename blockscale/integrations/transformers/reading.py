# SPDX-License-Identifier: BSD-3-Clause
"""Read what a blockscale file holds through transformers' own loader.

The loader renames tensors, moves them to their devices and puts them into parameters. Codes and
scales are no parameters: they are collected here under the weight's name, for which the model gets
a stand-in. When everything is read and tied, quantized layers take the stand-ins' places, as in
`bs.load`.
"""

import re
import warnings
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.core_model_loading import ConversionOps, WeightConverter, WeightTransform

from blockscale.files.header import sized
from blockscale.files.load import fill
from blockscale.files.match import match_quantized, shared_names
from blockscale.files.metadata import PARTS, QUANTIZERS, FileError, Metadata, TensorInfo
from blockscale.files.stored_model import read_headers
from blockscale.integrations.stand_in import TieMarks, stand_in, standing_in
from blockscale.integrations.transformers.arriving import Arriving, Renames
from blockscale.integrations.transformers.fusing import Fuse, only
from blockscale.layers.computed import folded, folded_for


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
        with folded(model, lambda _: True):
            told = Renames(model, old).metadata(source)[0]
        with folded_for(model, (*told.tensors, *told.aliases)):
            pass  # and they stay so
        renames = Renames(model, old)
        metadata, fused = renames.metadata(source)
        self._arriving = Arriving(
            path=source.path, files={}, kinds={}, metadata=metadata, source=source
        )
        for name, original in renames.names.items():
            self._arriving.add_parts(name, original)
        for name, original in renames.layers.items():
            self._arriving.add_layer(name, original)
        with standing_in(model):
            found = match_quantized(model, self._arriving, shared_names(model))
        self._dense = set(found.dense)
        new = [self._fused(each, fused.get(id(each), {})) for each in old]
        return new + [self._collects(attribute) for attribute in _attributes(metadata)]

    def _fused(
        self, old: WeightTransform, infos: dict[str, list[tuple[str, TensorInfo]]]
    ) -> WeightTransform:
        """A converter of the model's, whose sources may be quantized in these files."""
        if not infos or not isinstance(old, WeightConverter):
            return old
        told = {pattern: only(pattern, each) for pattern, each in infos.items()}
        sources = [
            source
            for pattern in old._original_source_patterns
            for source in (*(f"{pattern}.{part}" for part in PARTS), pattern)
        ]
        in_order = {each: told[each] for each in old._original_source_patterns if each in told}
        fuse = Fuse(self, in_order, old.operations)
        new = old.copy(sources, old._original_target_patterns, operations=[fuse])
        self._ours[id(new)] = old
        return new

    def take_fused(self, name: str, info: TensorInfo, parts: dict[str, Tensor]) -> Tensor:
        """The codes of a parameter that was fused; what the model holds for it meanwhile."""
        self._arriving.metadata.tensors[name] = info
        for part, tensor in parts.items():
            self._arriving.hold(f"{name}.{part}", tensor)
        old = self._model.get_parameter(name)
        return stand_in(info.shape, old.dtype, parts["codes"].device)

    def note_dequantized(self, name: str) -> None:
        """A parameter that was fused of floats, because its codes are not those of its parts."""
        self._dequantized.append(name)

    def _collects(self, attribute: str) -> WeightTransform:
        """Everything that is stored for a layer's `weight`, or another parameter, at once."""
        names = [f"{attribute}.{part}" for part in PARTS]
        if attribute == "weight":
            metadata = self._arriving.metadata
            layers = [f"{part}.{each}" for part in QUANTIZERS for each in PARTS]
            layers += ["before.factor", "before.signs", "before.order"]
            used = {part for formats in metadata.layers.values() for part in formats}
            names += [name for name in layers if name.partition(".")[0] in used]
        sources = [rf"{re.escape(name)}$" for name in names]
        new = WeightConverter(
            sources, attribute, [Collect(self, dict(zip(sources, names, strict=True)))]
        )
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
        old: Tensor = getattr(self._model.get_submodule(owner), attribute)
        device = own["codes"].device
        values: Tensor
        if name in self._dense:  # `fill` writes the float values
            values = torch.empty(info.shape, dtype=old.dtype, device=device)
            values = nn.Parameter(values) if isinstance(old, nn.Parameter) else values
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
                "blockscale: dequantized, because they are fused from parts with different "
                f"scales: {told}",
                stacklevel=7,
            )


def _attributes(metadata: Metadata) -> list[str]:
    """`weight`, and whatever else the parameters are called that are quantized."""
    return sorted({name.rpartition(".")[2] for name in metadata.tensors})


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
