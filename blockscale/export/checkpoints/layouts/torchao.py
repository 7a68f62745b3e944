# SPDX-License-Identifier: BSD-3-Clause
"""torchao's classes of quantized tensors, as what is said of them in a file's metadata."""

from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from blockscale.core.pack import pack
from blockscale.core.parse import parse
from blockscale.core.untrusted import json_object, parse_json, quote
from blockscale.export.checkpoints.assembling import FLOATS, assemble, block_of
from blockscale.export.checkpoints.layouts import Kinds, LayoutTensors, Parts, Read, Weight
from blockscale.files.metadata import FileError
from blockscale.ops.tensor import QTensor

Data = Mapping[str, Any]
Places = Mapping[str, str]
Take = Callable[[str, Data, Places, Kinds], Weight]
Shape = tuple[int, ...]
_FLOAT8 = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}
_MX = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2", "float4_e2m1fn_x2": "e2m1"}


def _name(value: Any) -> str:
    """The name of a dtype as it is written: {"_type": "torch.dtype", "_data": "int4"}."""
    return str(value.get("_data")) if isinstance(value, dict) else str(value)


def _whole(value: Any) -> int:
    return value if type(value) is int else 0


def _unread(kind: str, shape: Shape, places: Places, reason: str) -> Weight:
    return Weight(kind, shape, places, None, reason)


def _plain(kind: str, data: Data, places: Places, kinds: Kinds) -> Weight:
    """Codes of one an element, int8 or float8, with zero points or without."""
    (dtype, shape), (scale_dtype, scale) = kinds[places["qdata"]], kinds[places["scale"]]
    element = _FLOAT8.get(dtype, "int8" if dtype == torch.int8 else "") if dtype else ""
    if kind == "IntxUnpackedToInt8Tensor":
        element = _name(data.get("target_dtype"))
    sizes = data.get("block_size")
    group = _whole(sizes[-1]) if isinstance(sizes, list) and sizes else 0
    block, token = block_of(shape, scale, group), FLOATS.get(scale_dtype or torch.bool)
    integers = [f"int{bits}" for bits in range(2, 9)]
    if block is None or token is None or element not in (*_FLOAT8.values(), *integers):
        text = f"its codes are {element or dtype} {list(shape)}"
        return _unread(kind, shape, places, f"{text}, its scales {scale_dtype} {list(scale)}")
    option = ""
    if element in integers:
        option = ":asym" if "zero_point" in places else ":full"
    spelling = f"{element}:{block}:{token}{option}"
    decode = partial(_decode_plain, spelling, shape)
    return Weight(f"{kind} {element}", shape, places, str(parse(spelling)), decode=decode)


def _decode_plain(spelling: str, shape: Shape, parts: Parts) -> QTensor:
    fmt, codes = parse(spelling), parts["qdata"]
    if fmt.element.integer and fmt.bits < 8:
        low, high = fmt.element.limits(True)
        if bool(((codes < low) | (codes > high)).any()):
            raise ValueError(f"it has codes that {fmt.element.name} does not have")
        codes = pack(codes, fmt.element)
    own_parts = {"codes": codes, "scale": parts["scale"]}
    if fmt.asym:
        own_parts["zero_point"] = parts["zero_point"]
    return assemble(spelling, shape, own_parts)


def _blocks(kind: str, data: Data, places: Places, kinds: Kinds) -> Weight:
    """MX and NVFP4: scales are bytes, as a matrix or in cuBLAS' tiles."""
    (dtype, shape), (_, scale) = kinds[places["qdata"]], kinds[places["scale"]]
    element = "e2m1" if kind == "NVFP4Tensor" else _MX.get(_name(data.get("elem_dtype")), "")
    size, packed = _whole(data.get("block_size")), dtype == torch.uint8 and element == "e2m1"
    if not element or not size or len(shape) < 2 or packed != (element == "e2m1"):
        text = f"its codes are {dtype} {list(shape)} of {_name(data.get('elem_dtype'))}"
        return _unread(kind, shape, places, f"{text}, which is not supported")
    whole = (*shape[:-1], shape[-1] * 2) if packed else shape
    tiled = data.get("is_swizzled_scales") is True
    rows, columns = prod(whole[:-1]), -(-whole[-1] // size)
    if prod(scale) != (count(rows, columns) if tiled else rows * columns):
        text = f"its scales are {list(scale)}" + " in tiles" * tiled
        return _unread(kind, whole, places, f"{text}, for {rows} rows of {columns} blocks")
    spelling = f"{element}:group{size}:" + ("e4m3" if kind == "NVFP4Tensor" else "e8m0/given")
    decode = partial(_decode_blocks, spelling, whole, (rows, columns) if tiled else None)
    return Weight(f"{kind} {element}", whole, places, str(parse(spelling)), decode=decode)


def _decode_blocks(
    spelling: str, shape: Shape, tiled: tuple[int, int] | None, parts: Parts
) -> QTensor:
    scale = parts["scale"] if tiled is None else matrix(parts["scale"], *tiled)
    own_parts = {"codes": parts["qdata"], "scale": scale}
    own_parts["outer"] = parts.get("per_tensor_scale", torch.ones(1))
    return assemble(spelling, shape, own_parts)


def _int4(kind: str, data: Data, places: Places, kinds: Kinds) -> Weight:
    """Signed nibbles [n, k/2]; scales and floats to add [k/g, n] (mslk's int4_row_quantize_zp)."""
    del data
    (dtype, shape), (scale_dtype, scale) = kinds[places["qdata"]], kinds[places["scale"]]
    token = FLOATS.get(scale_dtype or torch.bool)
    whole = (*shape[:-1], shape[-1] * 2) if shape else ()
    transposed = (*scale[:-2], scale[-1], scale[-2]) if len(scale) > 1 else ()
    block = block_of(whole, transposed)
    right = dtype in (torch.uint8, torch.int8) and "zero_point" in places
    if not right or block is None or token is None or "act_pre_scale" in places:
        text = f"its codes are {dtype} {list(shape)}, its scales {scale_dtype} {list(scale)}"
        return _unread(kind, whole, places, text)
    spelling = f"int4:{block}:{token}:offset"
    decode = partial(_decode_int4, spelling, whole)
    return Weight(kind, whole, places, str(parse(spelling)), decode=decode)


def _decode_int4(spelling: str, shape: Shape, parts: Parts) -> QTensor:
    def transpose(part: str) -> Tensor:
        return parts[part].mT.contiguous()

    own_parts = {"codes": parts["qdata"].view(torch.uint8), "scale": transpose("scale")}
    return assemble(spelling, shape, own_parts | {"offset": transpose("zero_point")})


CLASSES: dict[str, Take] = {
    "Int8Tensor": _plain, "Float8Tensor": _plain, "IntxUnpackedToInt8Tensor": _plain,
    "MXTensor": _blocks, "NVFP4Tensor": _blocks, "Int4Tensor": _int4,
}  # fmt: skip


# Scales in the order of cuBLAS' block scaling, and as matrices again.
#
# Rows are padded to 128 and columns to 4; of each such tile row 32i + j, column k lies at (16j +
# 4i + k) (docs.nvidia.com/cuda/cublas, "1D Block Scaling Factors Layout").


_ROWS, _COLUMNS = 128, 4


def count(rows: int, columns: int) -> int:
    """How many scales are stored for a matrix of so many."""
    return -(-rows // _ROWS) * _ROWS * -(-columns // _COLUMNS) * _COLUMNS


def matrix(stored: Tensor, rows: int, columns: int) -> Tensor:
    """Stored scales of any shape -> [rows, columns]. Raises ValueError for another number."""
    if stored.numel() != count(rows, columns):
        raise ValueError(
            f"it has {stored.numel()} scales in tiles, expected {count(rows, columns)} for "
            f"{rows} x {columns}"
        )
    high, wide = -(-rows // _ROWS), -(-columns // _COLUMNS)
    tiles = stored.contiguous().view(torch.uint8).reshape(high, wide, 32, 4, 4)
    whole = tiles.permute(0, 3, 2, 1, 4).reshape(high * _ROWS, wide * _COLUMNS)
    return whole[:rows, :columns].contiguous().view(stored.dtype)


# Which tensors of a file are torchao's: the file's metadata says it, tensor by tensor.
#
# `tensor_names` lists names, and each has JSON with its class (`_type`), what the class knows
# (`_data`) and the names of its tensors. Weight `a.weight` has `a._weight_qdata`,
# `a._weight_scale`.


PRODUCER = "torchao"
METHODS = ("torchao",)
_KEY = "tensor_names"
_MOST = 1_000_000  # characters of what is said of one tensor


def find(kinds: Kinds, config: Mapping[str, Any], read: Read) -> LayoutTensors:
    """Weights whose class the metadata name. Raises FileError for metadata that are no JSON."""
    del read
    tensors, metadata = LayoutTensors(), config.get("safetensors_metadata", {})
    if _KEY not in metadata:
        return tensors
    for name, text in sorted(metadata.items()):
        if not text.startswith('{"_type"') or "." not in name:
            continue
        data = json_object(parse_json(text, f"what is said of {quote(name)}", most=_MOST), name)
        if data.get("_type") != "torch.Tensor":
            _add(tensors, name, data, kinds)
    if tensors.weights:
        tensors.evidence = f"its metadata have {_KEY} and the class of each"
    return tensors


def _add(tensors: LayoutTensors, name: str, settings: Mapping[str, Any], kinds: Kinds) -> None:
    owner, _, last = name.rpartition(".")
    roles = settings.get("_tensor_data_names")
    data = settings.get("_data")
    if not isinstance(roles, list) or not isinstance(data, dict):
        raise FileError(f"the metadata of {quote(name)} have no _data or _tensor_data_names")
    places = {str(role): f"{owner}._{last}_{role}" for role in roles}
    missing = [place for place in places.values() if place not in kinds]
    if missing:
        raise FileError(f"{missing[0]} is missing, though the metadata of {quote(name)} name it")
    kind = str(settings.get("_type"))
    take = CLASSES.get(kind)
    if take is None or "qdata" not in places or "scale" not in places:
        shape = kinds[places["qdata"]][1] if "qdata" in places else ()
        reason = f"{kind} holds codes rearranged for one kernel, or is a newer class: torchao "
        tensors.add(name, Weight(kind, shape, places, None, reason + "dequantizes it"))
    else:
        tensors.add(name, take(kind, data, places, kinds))
