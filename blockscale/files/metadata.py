# SPDX-License-Identifier: BSD-3-Clause
"""What a blockscale file says about itself (docs/files.md).

A file is a safetensors file. A quantized tensor `name` is stored as `name.codes`, `name.scale` and,
where its format has them, `name.outer`, `name.zero_point`, `name.offset`, `name.offset_outer` and
`name.scale_offset`; everything else is stored as it is.
The safetensors metadata holds `blockscale`, this JSON, and `blockscale_sha256`, its digest:

    {"version": 1,
     "tensors": {name: {"format": spelling, "shape": [...], "dtype": "float32", "layout": "plain"}},
     "layers": {layer: {"input": spelling, "output": spelling, "before": spelling}},
     "aliases": {name: name it is tied to},
     "folded": {batch norm: the layer that includes it}}

`shape` and `dtype` are those of the float tensor; `layout` is one of core.layout. A bias
can be a quantized tensor, too, also in `int32:sums` (core.arithmetic.sums), a scale for each code.
`layers` has an entry for each layer whose input or output is quantized, or transformed before that
(`blockscale.layers.before`), and for each stack of experts, a tensor under its own name, whose
input is; a static scale of it is stored as `layer.input.scale`, like a weight's, and what a
transform holds as `layer.before.factor` or `layer.before.signs`. `folded` is
left out where it is empty.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import torch

from blockscale.core.arithmetic.sums import SumInteger
from blockscale.core.pack import check_layout, inputs_first, packed_dtype, packed_size, stored_shape
from blockscale.core.parse import parse
from blockscale.core.recipe import BiasFormat, read_bias
from blockscale.core.reference import QParams
from blockscale.core.untrusted import FileError as FileError
from blockscale.core.untrusted import json_object, parse_json, quote
from blockscale.files.header import LARGEST
from blockscale.layers import before

KEY = "blockscale"
DIGEST = "blockscale_sha256"  # of that JSON: a damaged header could spell another format
VERSION = 1
PARTS = ("codes", *QParams._fields)
QUANTIZERS = ("input", "output")
AGAIN = "copy the file again, or write it again"


@dataclass(frozen=True)
class TensorInfo:
    """How one quantized tensor is stored."""

    format: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    layout: str = "plain"

    def parts(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """{part: (dtype, shape)} of what is stored, from the format and shape alone."""
        return dict(_parts(self.format, tuple(self.shape), self.layout))


@lru_cache(maxsize=1024)  # the tensors of a model have few kinds
def _parts(
    spelling: str, shape: tuple[int, ...], layout: str
) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    fmt = read_bias(spelling)
    if isinstance(fmt, SumInteger):
        return fmt.parts(shape)
    stored = stored_shape(shape, layout)
    row = stored or (1,)  # rank 0 is packed as one row
    codes = (*row[:-1], packed_size(fmt.element, row[-1]))
    return {"codes": (packed_dtype(fmt.element), codes), **fmt.stored(stored)}


@dataclass
class Metadata:
    """The JSON of the module docstring."""

    tensors: dict[str, TensorInfo] = field(default_factory=dict)
    layers: dict[str, dict[str, str]] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    folded: dict[str, str] = field(default_factory=dict)

    def formats(self, layer: str) -> dict[str, str]:
        """The spellings of what quantizes this layer's input and output."""
        parts = self.layers.get(layer, {})
        return {part: parts[part] for part in QUANTIZERS if part in parts}

    def before(self, layer: str) -> str | None:
        """The spelling of what transforms this layer's input, if anything does."""
        return self.layers.get(layer, {}).get("before")

    def features(self, layer: str) -> int:
        """How many features such a transform has: the layer's channels or inputs."""
        name = f"{layer}.weight"
        info = self.tensors[self.aliases.get(name, name)]
        return info.shape[0 if inputs_first(info.layout) else 1]

    def encode(self) -> dict[str, str]:
        """The metadata of a safetensors file."""
        data = {"version": VERSION, **vars(self)}
        data["tensors"] = {name: vars(info) for name, info in self.tensors.items()}
        if not self.folded:  # files without batch norms that were folded are as they ever were
            del data["folded"]
        text = json.dumps(data, sort_keys=True)
        return {"format": "pt", KEY: text, DIGEST: _digest(text)}

    @classmethod
    def merge(cls, parts: Iterable["Metadata"]) -> "Metadata":
        """That of a directory, from that of its files."""
        whole = cls()
        for part in parts:
            whole.tensors |= part.tensors
            whole.layers |= part.layers
            whole.aliases |= part.aliases
            whole.folded |= part.folded
        return whole

    @classmethod
    def decode(cls, metadata: Mapping[str, str] | None, path: object) -> "Metadata | None":
        """What `encode` made, None for a file without it.

        Raises FileError for a newer version, an unknown format or layout, and damaged text.
        """
        text = (metadata or {}).get(KEY)
        if text is None:
            return None
        try:
            data = json_object(parse_json(text, "it", most=LARGEST), "it")
            version = data["version"]
        except (ValueError, KeyError) as error:
            raise FileError(
                f"{path}: its blockscale metadata is damaged ({error}): {AGAIN}"
            ) from None
        if version != VERSION or type(version) is not int:
            raise FileError(
                f"{path}: written in version {quote(version)} of the file format, and this "
                f"blockscale reads version {VERSION}: install a newer blockscale"
            )
        if (metadata or {}).get(DIGEST) != _digest(text):
            raise FileError(
                f"{path}: its blockscale metadata is damaged (its digest does not match): {AGAIN}"
            )
        try:
            tensors = {name: _tensor(name, info) for name, info in data["tensors"].items()}
            aliases, folded = _texts(data["aliases"]), _texts(data.get("folded", {}))
            layers = {name: _texts(parts) for name, parts in data["layers"].items()}
            decoded = cls(tensors, layers, aliases, folded)
            for name in layers:
                _check_layer(decoded, name)
            for norm, layer in folded.items():
                _check_quantized(decoded, layer, f"includes {norm!r}")
            return decoded
        except (TypeError, KeyError, AttributeError, OverflowError) as error:
            raise FileError(
                f"{path}: its blockscale metadata is damaged ({error!r}): {AGAIN}"
            ) from None
        except ValueError as error:
            raise FileError(f"{path}: {error}") from None


def _texts(data: dict[str, str]) -> dict[str, str]:
    """What maps names to texts. Raises TypeError for anything else."""
    if not all(isinstance(value, str) for value in data.values()):
        raise TypeError("expected strings")
    return data


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _tensor(name: str, data: dict[str, object]) -> TensorInfo:
    info = TensorInfo(**{**data, "shape": tuple(data["shape"])})  # type: ignore[arg-type]
    if not all(type(size) is int and size >= 0 for size in info.shape):
        raise ValueError(f"tensor {name!r}: {info.shape} is not a shape")
    dtype = getattr(torch, info.dtype, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(f"tensor {name!r}: {quote(info.dtype)} is not a float dtype")
    try:
        check_layout(info.layout)
    except ValueError as error:
        raise ValueError(f"tensor {name!r}: {error}") from None
    _check_spelling(f"tensor {name!r}", info.format, read_bias if name.endswith(".bias") else parse)
    try:
        info.parts()
    except (ValueError, IndexError) as error:
        raise ValueError(f"tensor {name!r} of shape {info.shape}: {error}") from None
    return info


def _check_layer(metadata: Metadata, name: str) -> None:
    parts, weight = metadata.layers[name], f"{name}.weight"
    stack = name in metadata.tensors
    if not stack:
        _check_quantized(metadata, name, "has formats")
    names = ("input",) if stack else (*QUANTIZERS, "before")
    if unknown := set(parts) - set(names):
        raise ValueError(
            f"layer {name!r}: unknown part {sorted(unknown)[0]!r}; choose from {', '.join(names)}"
        )
    for text in metadata.formats(name).values():
        _check_spelling(f"layer {name!r}", text)
    spelling = metadata.before(name)
    if spelling is None:
        return
    info = metadata.tensors[metadata.aliases.get(weight, weight)]
    if len(stored_shape(info.shape, info.layout)) != 2:
        raise ValueError(f"layer {name!r}: a transform needs a matrix, found shape {info.shape}")
    try:
        before.stored_buffers(spelling, metadata.features(name))
    except ValueError as error:
        raise ValueError(f"layer {name!r}: {error}") from None


def _check_quantized(metadata: Metadata, layer: str, what: str) -> None:
    weight = f"{layer}.weight"
    if metadata.aliases.get(weight, weight) not in metadata.tensors:
        raise ValueError(f"layer {layer!r} {what}, but has no quantized weight")


def _check_spelling(owner: str, text: str, read: Callable[[str], BiasFormat] = parse) -> None:
    try:
        read(text)
    except ValueError as error:
        raise ValueError(f"{owner}: {error}") from None
