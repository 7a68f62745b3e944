"""Quantized tensors of other producers, as `compare` meets them: told by their names and dtypes.

Decoded is what has a code in each element and scales beside it: float8 and int8 weights with
`weight_scale_inv` (DeepSeek, Qwen: tiles), `weight_scale` (compressed-tensors, ModelOpt, FBGEMM),
`scale_weight` (ComfyUI) or torchao's `_weight_scale`. All of them multiply, whatever the name says.
What is packed in a producer's own order is refused by name.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.core.parse import parse
from blockscale.files.metadata import TensorInfo
from blockscale.files.slabs.cutting import Cuts, Sizes, Slab
from blockscale.files.slabs.rows import OpenStoredModel, OtherLayoutRows, QuantizedRows, Rows
from blockscale.files.stored_model import StoredKind, StoredModel

_ELEMENTS = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2", torch.int8: "int8"}
_SCALES = {
    torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16",
    torch.float8_e8m0fnu: "e8m0/given", torch.uint8: "e8m0/given",
}  # fmt: skip
_TILE = 128  # of DeepSeek, whose last tiles may be partial
_QDATA = "._weight_qdata"  # torchao


class _Packed(NamedTuple):
    """What one producer calls its packed codes, and what else is stored for them."""

    codes: str
    weight: str  # what the float tensor ends in instead
    producer: str
    beside: tuple[str, ...]
    needs: str = ""  # there must be a tensor that begins so, too
    dtypes: tuple[torch.dtype, ...] = ()


_U8, _I8, _U32 = (torch.uint8,), (torch.int8,), (torch.uint32, torch.int32)
_CT = ("_scale", "_shape", "_zero_point", "_g_idx", "_global_scale", "_scale_2")
_PACKED = (
    _Packed(".qweight", ".weight", "GPTQ or AWQ", (".qzeros", ".scales", ".g_idx")),
    _Packed(".weight_packed", ".weight", "compressed-tensors", tuple(f".weight{e}" for e in _CT)),
    _Packed("_blocks", "", "gpt-oss's MXFP4", ("_scales",), "_scales", _U8),
    _Packed(
        ".weight", ".weight", "bitsandbytes (4 bits)",
        (*(f".weight.{e}" for e in ("absmax", "quant_map", "nested_absmax", "nested_quant_map")),),
        ".weight.absmax", _U8,
    ),
    _Packed(".weight", ".weight", "bitsandbytes (8 bits)", (".SCB", ".weight_format"), ".SCB", _I8),
    _Packed(".weight", ".weight", "MLX", (".scales", ".biases"), ".scales", _U32),
    _Packed(
        ".weight", ".weight", "NVIDIA ModelOpt (packed)",
        (".weight_scale", ".weight_scale_2"), ".weight_scale", _U8,
    ),
    _Packed(
        _QDATA, ".weight", "torchao (packed)",
        tuple(f"._weight_{e}" for e in ("scale", "zero_point", "per_tensor_scale")), "", _U8,
    ),
    _Packed(".W_q", ".weight", "HQQ", (".scale", ".zero", ".meta")),
    _Packed(".weight._data", ".weight", "optimum-quanto", (".weight._scale", ".weight._shift")),
)  # fmt: skip


@dataclass(frozen=True)
class ForeignWeight:
    """A weight that can be decoded: as one of ours, and where its parts are stored."""

    info: TensorInfo
    parts: Mapping[str, str]


@dataclass
class Foreign:
    """What other producers' tensors a file holds.

    weights: {name of the float weight: how to decode it}
    unread: {name of the float weight: why it cannot be decoded}
    beside: the names of all stored tensors that are parts of either
    """

    weights: dict[str, ForeignWeight] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    beside: set[str] = field(default_factory=set)


def find_foreign(source: StoredModel) -> Foreign:
    """Other producers' quantized tensors among those that a file stores as they are."""
    kinds = {name: source.kinds[name] for name in source.plain()}
    found = Foreign()
    for name in sorted(kinds):
        if (packed := _packed(name, kinds)) is not None:
            base = name.removesuffix(packed.codes)
            parts = {f"{base}{each}" for each in packed.beside}
            parts |= {each for each in kinds if each.startswith(f"{name}.quant_state.")}
            found.beside |= {name, *(parts & kinds.keys())}
            found.unread[base + packed.weight] = (
                f"{name} holds codes of {packed.producer}, which compare does not decode: compare "
                f"what its own library dequantizes"
            )
        elif kinds[name][0] in _ELEMENTS and (scale := _scale_of(name, kinds)):
            _take(found, name, scale, kinds)
    return found


def _packed(name: str, kinds: Mapping[str, StoredKind]) -> _Packed | None:
    for each in _PACKED:
        base = name.removesuffix(each.codes)
        fits = not each.dtypes or kinds[name][0] in each.dtypes
        if base != name and fits and (not each.needs or f"{base}{each.needs}" in kinds):
            return each
    return None


def _beside(name: str) -> Iterator[str]:
    """The names that the scale of these codes may have."""
    owner, _, last = name.rpartition(".")
    if name.endswith(_QDATA):
        yield f"{owner}._weight_scale"
        return
    yield from (f"{name}_scale_inv", f"{name}_scale")
    if last == "weight":
        yield f"{owner}.scale_weight"


def _scale_of(name: str, kinds: Mapping[str, StoredKind]) -> str | None:
    return next((each for each in _beside(name) if each in kinds), None)


def _take(found: Foreign, name: str, scale: str, kinds: Mapping[str, StoredKind]) -> None:
    """Note how codes and their scale are decoded, or why they are not."""
    weight = name.removesuffix(_QDATA) + ".weight" if name.endswith(_QDATA) else name
    zero_point = scale.removesuffix("_inv").removesuffix("_scale") + "_zero_point"
    parts = {"codes": name, "scale": scale}
    if zero_point in kinds:
        parts["zero_point"] = zero_point
    found.beside |= {*parts.values()}
    (dtype, shape), (scale_dtype, scale_shape) = kinds[name], kinds[scale]
    block = _block(shape, scale_shape)
    kind = _SCALES.get(scale_dtype) if scale_dtype is not None else None
    whole = dtype is not torch.int8
    if block is None or kind is None or (kind == "e8m0/given" and not whole):
        found.unread[weight] = (
            f"{scale} is {scale_dtype} {list(scale_shape)}, which says nothing of {name}, {dtype} "
            f"{list(shape)}: there is no block of which it could be the scale"
        )
        return
    assert dtype is not None  # it is one of _ELEMENTS
    option = ":asym" if "zero_point" in parts else ":full" * (not whole)
    fmt = str(parse(f"{_ELEMENTS[dtype]}:{block}:{kind}{option}"))
    found.weights[weight] = ForeignWeight(TensorInfo(fmt, shape), parts)


def _block(shape: Sizes, scale: Sizes) -> str | None:
    """The block of which a tensor of this shape has such a scale, by their sizes alone."""
    if prod(scale) == 1:
        return "tensor"
    if len(shape) == 2 and scale in (shape[:1], (shape[0], 1)):
        return "channel0"
    if len(shape) < 2 or len(scale) != len(shape) or scale[:-2] != shape[:-2]:
        return None
    rows, columns = (_size(n, count) for n, count in zip(shape[-2:], scale[-2:], strict=True))
    return f"tile{rows}x{columns}" if rows and columns else None


def _size(elements: int, count: int) -> int:
    """Of `count` equal blocks along so many elements, of which the last may be partial; or 0."""
    if -(-elements // _TILE) == count:  # also where other sizes would do: nobody writes those
        return min(_TILE, elements)
    return elements // count if count and elements % count == 0 else 0


class _ForeignRows(QuantizedRows):
    """A weight of another producer, dequantized to float32."""

    def _part(self, part: str, sizes: Sizes, shape: Sizes, cuts: Cuts, slab: Slab) -> Tensor:
        stored = super()._part(part, sizes, shape, cuts, slab)
        if part == "zero_point":
            return stored.to(torch.int32)
        return stored.view(torch.uint8) if str(stored.dtype).startswith("torch.float8") else stored


def foreign_rows(files: OpenStoredModel, weight: ForeignWeight, layout: str) -> Rows:
    """A weight of another producer that is stored in these files, seen in a layout."""
    readers = {part: (files.reader(name), name) for part, name in weight.parts.items()}
    rows = _ForeignRows(readers, weight.info)
    return rows if layout == "plain" else OtherLayoutRows(rows, weight.info, layout)
