# SPDX-License-Identifier: BSD-3-Clause
"""safetensors files: ours, and those of other producers as layouts/ knows them."""

import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from blockscale.core.arithmetic.sums import SumInteger
from blockscale.core.pack import stored_shape
from blockscale.core.recipe import read_bias
from blockscale.core.untrusted import json_object, read_json
from blockscale.export.checkpoints.checkpoint import Checkpoint, Stored
from blockscale.export.checkpoints.layouts import Weight, find_weights
from blockscale.files.header import begins
from blockscale.files.metadata import FileError, Metadata
from blockscale.files.slabs.rows import OpenStoredModel
from blockscale.files.stored_model import INDEX, StoredModel, open_stored_model
from blockscale.files.stream import Reader
from blockscale.ops.tensor import QTensor, dtype_name, from_parts


def recognize(path: Path) -> str | None:
    """What tells that it is one: files of that name, or how it begins."""
    if path.is_dir():
        count = sum(1 for _ in path.glob("*.safetensors"))
        if not count and (path / INDEX).is_file():
            return f"it holds {INDEX}"
        return f"it holds {count} safetensors file{'s' * (count > 1)}" if count else None
    if path.suffix == ".safetensors":
        return "its name ends in .safetensors"
    if not path.is_file():
        return None
    with path.open("rb") as file:
        start = file.read(9)
    return "it begins as safetensors files do" if begins(start, path.stat().st_size) else None


def own_model(path: Path) -> StoredModel | None:
    """A file or directory that our own code wrote, which `bs.load` reads without a translation."""
    source = open_stored_model(path)
    return source if source.metadata.tensors else None


class Safetensors(Checkpoint):
    """A safetensors file, or a directory of them; names are those of the float tensors."""

    producer = "safetensors"

    def __init__(self, path: Path, evidence: str):
        super().__init__(path, evidence)
        self._source = source = open_stored_model(path)
        self._files = OpenStoredModel(source)
        weakref.finalize(self, self._files.close)  # who does not close it lets go of it at least
        plain = source.plain()
        self.config = read_configuration(path, sorted(set(source.files.values())))
        kinds = {name: source.kinds[name] for name in sorted(plain)}
        result = find_weights(kinds, self.config, self._tensors)
        self.producers, self.warnings = result.producers, result.warnings
        self._weights, self._inputs = result.weights, result.inputs
        if result.evidence:
            self.producer = " and ".join(dict.fromkeys(result.producers.values()))
            self.evidence = result.evidence
        if source.metadata.tensors:
            self.producer = f"blockscale and {self.producer}" if result.evidence else "blockscale"
            text = "its metadata have `blockscale`"
            self.evidence = f"{text}; {self.evidence}" if result.evidence else text
        for name, each in result.weights.items():
            self.stored[name] = self._of_weight(name, each)
        for name, info in self._source.metadata.tensors.items():
            parts = info.parts()
            nbytes = sum(prod(shape) * dtype.itemsize for dtype, shape in parts.values())
            shape = stored_shape(info.shape, info.layout)
            self.stored[name] = Stored(name, "blockscale", shape, nbytes, info.format)
        for name in sorted(plain - result.beside):
            self.stored[name] = self._plain(name)

    def close(self) -> None:
        """Give the files back."""
        self._files.close()

    def _tensors(self, names: Iterable[str]) -> dict[str, Tensor]:
        """The stored tensors of these names; each file stays open for the next."""
        return {name: self._files.reader(name).tensor(name) for name in names}

    @property
    def unquantized(self) -> StoredModel | None:
        quantized = any(each.format or each.unread for each in self.stored.values())
        return None if quantized else self._source

    @property
    def own_metadata(self) -> Metadata:
        return self._source.metadata

    @property
    def inputs(self) -> Mapping[str, str]:
        return {layer: each.format for layer, each in self._inputs.items()}

    def input_parts(self, layer: str) -> Mapping[str, Tensor]:
        result = self._inputs[layer]
        tensors = self._tensors(result.parts.values())
        return result.decode({role: tensors[place] for role, place in result.parts.items()})

    def rounds(self, name: str) -> bool:
        weight = self._weights.get(name)
        return weight is not None and weight.values is not None

    def _plain(self, name: str) -> Stored:
        dtype, shape = self._source.kinds[name]
        if dtype is None:
            return Stored(name, "unknown", shape, 0, None, "torch does not have its dtype")
        nbytes = prod(shape) * dtype.itemsize
        return Stored(name, dtype_name(dtype), shape, nbytes, dtype=dtype)

    def _nbytes(self, parts: Iterable[str]) -> int:
        kinds = [self._source.kinds[part] for part in parts]
        return sum(prod(shape) * dtype.itemsize for dtype, shape in kinds if dtype is not None)

    def _of_weight(self, name: str, weight: Weight) -> Stored:
        nbytes = self._nbytes(weight.parts.values())
        info = weight.kind, weight.shape, nbytes, weight.format, weight.unread, weight.flat
        return Stored(name, *info)

    def _read(self, stored: Stored) -> QTensor | Tensor:
        name = stored.name
        if (one := self._weights.get(name)) is not None:
            return self._decode(name, one)
        if name not in self._source.metadata.tensors:
            return self._tensors([name])[name]
        parts = self._source.parts_of(name)
        tensors = self._tensors(parts.values())
        own_parts = {part: tensors[place] for part, place in parts.items()}
        fmt = read_bias(self._source.metadata.tensors[name].format)
        if isinstance(fmt, SumInteger):
            return own_parts["codes"].to(torch.float32) * own_parts["scale"]
        return from_parts(fmt, (stored.shape or (1,))[-1], own_parts)

    def _parts(self, weight: Weight, but: str = "") -> dict[str, Tensor]:
        """Its stored tensors by their roles; one of them is not read, but on the meta device."""
        read = {role: place for role, place in weight.parts.items() if role != but}
        tensors = self._tensors(read.values())
        parts = {role: tensors[place] for role, place in read.items()}
        if but:
            dtype, shape = self._source.kinds[weight.parts[but]]
            parts[but] = torch.empty(shape, dtype=dtype, device="meta")
        return parts

    def _decode(self, name: str, weight: Weight) -> QTensor:
        assert weight.decode is not None  # what cannot be read says why, and is not asked for
        with self._naming(name):
            return weight.decode(self._parts(weight))

    def without_codes(self, name: str) -> QTensor | Tensor:
        weight = self._weights.get(name)
        if weight is None or not weight.codes or weight.decode is None:
            return self[name]
        with self._naming(name):
            return weight.decode(self._parts(weight, weight.codes))

    def first_rows(self, name: str) -> QTensor | None:
        weight = self._weights.get(name)
        if weight is None or weight.first is None:
            return None
        with self._naming(name):
            return weight.first(self._parts(weight))

    def has_order(self, name: str) -> bool:
        return name in self._weights and self._weights[name].order is not None

    def file_of(self, name: str) -> Path:
        weight = self._weights.get(name)
        if weight is not None:
            return self._source.files[next(iter(weight.parts.values()))]
        if name in self._source.metadata.tensors:
            return self._source.files[next(iter(self._source.parts_of(name).values()))]
        return self._source.files.get(name, self.path)

    def order(self, name: str) -> Tensor | None:
        weight = self._weights.get(name)
        if weight is None or weight.order is None:
            return None
        with self._naming(name):
            return weight.order(self._parts(weight))

    def dequantize(self, name: str) -> Tensor:
        weight = self._weights.get(name)
        if weight is None:
            return super().dequantize(name)
        if weight.values is not None:
            with self._naming(name):
                return weight.values(self._parts(weight))
        result, order = self[name], self.order(name)
        assert isinstance(result, QTensor)
        values = result.dequantize(weight.dtype)
        return values if order is None else torch.empty_like(values).index_copy_(-1, order, values)

    @contextmanager
    def _naming(self, name: str) -> Iterator[None]:
        """Errors of a layout, with the tensor's name."""
        try:
            yield
        except ValueError as error:
            raise FileError(f"{self.path}: {name}: {error}") from None


reader = Safetensors


# What a directory's configuration says about how its weights are quantized.


# Files beside config.json that say it, and the method that they are of where they name none
_OTHERS = {
    "quantize_config.json": "gptq",  # AutoGPTQ, before transformers' config had it
    "quant_config.json": "awq",  # AutoAWQ's
    "hf_quant_config.json": "modelopt",
    "quanto_qmap.json": "quanto",
    "quantization_map.json": "quanto",
}


def read_configuration(path: Path, files: Iterable[Path] = ()) -> dict[str, Any]:
    """The `quantization_config` of the model in a directory, or {}; of a file, its folder's.

    files: the safetensors files, whose metadata are joined under the key "safetensors_metadata".
    Under "model" stands the whole of config.json, under "evidence" which file said it. What is in a
    file of its own has a key `quant_method`, too.

    Raises FileError for files that are no JSON objects.
    """
    folder = path if path.is_dir() else path.parent
    data: dict[str, Any] = {}
    model: dict[str, Any] = {}
    source = ""
    if (folder / "config.json").is_file():
        model = json_object(read_json(folder / "config.json"), folder / "config.json")
        data, source = _of_model(model, folder / "config.json")
    for name, method in _OTHERS.items():
        if not data and (folder / name).is_file():
            inside = json_object(read_json(folder / name), folder / name)
            data, source = {"quant_method": method} | _flat(inside, method), name
    metadata: dict[str, str] = {}
    for file in files:
        with Reader(file) as reader:
            metadata |= reader.metadata
    extra = {"safetensors_metadata": metadata, "model": model, "evidence": source}
    return dict(data) | extra


def _of_model(model: Mapping[str, Any], path: Path) -> tuple[dict[str, Any], str]:
    """What config.json says, for the text part of a model of several, too."""
    for part in (model, model.get("text_config")):
        if not isinstance(part, dict):
            continue
        if part.get("quantization_config") is not None:
            config = part["quantization_config"]
            if not isinstance(config, dict):
                raise FileError(f"{path}: quantization_config is not a JSON object")
            method = config.get("quant_method")
            if method is None and {"bits", "group_size"} <= config.keys():
                return {"quant_method": "mlx"} | config, "config.json: quantization"
            return config, f"config.json: quant_method {method}"
        if isinstance(part.get("quantization"), dict):  # mlx-lm's
            return {"quant_method": "mlx"} | part["quantization"], "config.json: quantization"
    return {}, ""


def _flat(inside: dict[str, Any], method: str) -> dict[str, Any]:
    """What a file of its own holds; ModelOpt's has it one level down, quanto's is a map."""
    if method == "quanto":
        return {"modules": inside}
    deeper = inside.get("quantization")
    return inside | deeper if isinstance(deeper, dict) else inside
