# SPDX-License-Identifier: BSD-3-Clause
"""bitsandbytes: nf4 and fp4 in blocks of the flattened tensor, plain or with double quantization,
and int8 rows (bitsandbytes 0.50.2, functional.py: QuantState.as_dict, int8_vectorwise_dequant).

Two codes a byte, the first in the high nibble. What stands beside them is described by JSON in a
tensor of bytes, NAME.quant_state.bitsandbytes__nf4.
"""

from collections.abc import Mapping
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from blockscale.core.elements.codebook import book, named_codebooks
from blockscale.core.untrusted import json_object, parse_json, quote
from blockscale.export.checkpoints import assembling
from blockscale.export.checkpoints.layouts import Kinds, LayoutTensors, Parts, Read, Weight
from blockscale.files.metadata import FileError
from blockscale.ops.tensor import QTensor

PRODUCER = "bitsandbytes"
METHODS = ("bitsandbytes",)
_STATE = ".quant_state.bitsandbytes__"
_ROLES = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")
_INT8 = 7.874015718698502e-3  # its 1 / 127: of absmax and a code, it is multiplied last
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def find(kinds: Kinds, config: Mapping[str, Any], read: Read) -> LayoutTensors:
    """Weights with a quant_state, or with absolute maxima SCB."""
    del config
    layout_tensors = LayoutTensors()
    states = {name.partition(_STATE)[0]: name for name in kinds if _STATE in name}
    small = [*states.values(), *(f"{n}.{r}" for n in states for r in ("quant_map", *_ROLES[3:]))]
    tensors = read([name for name in small if name in kinds])
    for name, state in states.items():
        if name in kinds:
            layout_tensors.add(name, _four_bits(name, state, kinds, tensors), state)
            layout_tensors.evidence = layout_tensors.evidence or f"{quote(state)} is bitsandbytes'"
    for name, (dtype, shape) in kinds.items():
        scb, kind = (
            name.removesuffix("weight") + "SCB",
            name.removesuffix("weight") + "weight_format",
        )
        if name.endswith(".weight") and dtype == torch.int8 and scb in kinds and len(shape) == 2:
            formats = read([kind]).values() if kind in kinds else ()
            layout_tensors.add(name, _int8(name, scb, kinds, formats), *({kind} & kinds.keys()))
            layout_tensors.evidence = layout_tensors.evidence or f"{quote(scb)} is bitsandbytes'"
    return layout_tensors


def _four_bits(name: str, state: str, kinds: Kinds, tensors: Mapping[str, Tensor]) -> Weight:
    parts = {r: f"{name}.{r}" for r in _ROLES if f"{name}.{r}" in kinds} | {"codes": name}
    if tensors[state].dtype != torch.uint8:
        raise FileError(
            f"{quote(state)} is {tensors[state].dtype}, expected uint8 (the bytes of JSON)"
        )
    data = json_object(parse_json(bytes(tensors[state].flatten().tolist()), state), state)
    kind = f"bitsandbytes {data.get('quant_type', '?')}" + ", double" * ("nested_absmax" in parts)
    shape = data.get("shape")
    sizes = [data.get("blocksize"), *(shape if isinstance(shape, list) else [None])]
    if not all(type(size) is int and 0 < size < 2**40 for size in sizes):
        raise FileError(f"{quote(state)} has no sizes: shape {shape}, blocksize {sizes[0]}")
    shape = tuple(sizes[1:])
    try:
        fmt = _spelling(data, shape, parts, kinds, tensors)
    except ValueError as error:
        return Weight(kind, shape, parts, None, str(error))
    dtype = _DTYPES.get(str(data.get("dtype", "float32")), torch.float32)
    offset = data.get("nested_offset")
    decode = partial(_decode, fmt=fmt, shape=shape, offset=offset)
    return Weight(kind, shape, parts, fmt, "", decode, None, dtype, codes="codes")


def _spelling(
    data: Mapping[str, Any],
    shape: tuple[int, ...],
    parts: Mapping[str, str],
    kinds: Kinds,
    tensors: Mapping[str, Tensor],
) -> str:
    """The format of a weight of four bits. Raises ValueError for what none can say."""
    count, size = prod(shape), data["blocksize"]
    dtype, stored = kinds[parts["codes"]]
    if dtype is None or prod(stored) * dtype.itemsize != -(-count // 2):
        raise ValueError(
            f"its codes are {dtype} {list(stored)}, expected {count} for a weight {list(shape)}"
        )
    if not {"absmax", "quant_map"} <= parts.keys():
        raise ValueError("its absmax or its quant_map is missing")
    element = _element(tensors[parts["quant_map"]], 16, ("nf4", "fp4"))
    rows = shape[-1] % size == 0
    block = f"group{size}" if rows else f"flat{size}"
    if "nested_absmax" not in parts:
        return f"{element}:{block}:fp32"
    if "nested_quant_map" not in parts or type(data.get("nested_offset")) not in (int, float):
        raise ValueError("its nested_quant_map or nested_offset is missing")
    nested = data.get("nested_blocksize")
    if type(nested) is not int or nested < 1:
        raise ValueError(f"its nested_blocksize is {nested!r}")
    inner = _element(tensors[parts["nested_quant_map"]], 256, ("dynamic8",))
    return f"{element}:{block}:({inner}:flat{nested}:fp32:offset(tensor:fp32))"


def _element(table: Tensor, count: int, names: tuple[str, ...]) -> str:
    """A table's name, or its values. Raises ValueError for a table that is no codebook."""
    if table.numel() != count or table.dtype != torch.float32:
        raise ValueError(f"a table has {table.numel()} numbers of {table.dtype}, expected {count}")
    for name in names:
        if torch.equal(table.flatten(), torch.tensor(named_codebooks()[name].table)):
            return name
    return book(table.flatten().tolist()).name


def _decode(parts: Parts, *, fmt: str, shape: tuple[int, ...], offset: float | None) -> QTensor:
    stored = assembling.as_bytes(parts["codes"].flatten())
    codes = (stored >> 4) | (stored << 4)
    if shape[-1] % 2:  # rows of ours begin with a byte of their own
        flat = assembling.fields(codes, 4, prod(shape))
        codes = assembling.packed(flat.reshape(shape), "uint4:tensor:fp32")
    own_parts = {"codes": codes, "scale": parts["absmax"]}
    if "nested_absmax" in parts:
        own_parts["outer"] = parts["nested_absmax"]
        own_parts["scale_offset"] = torch.tensor(offset, dtype=torch.float32)
    return assembling.quantized(fmt, shape, own_parts)


def _int8(name: str, scb: str, kinds: Kinds, formats: Any) -> Weight:
    parts, shape = {"codes": name, "absmax": scb}, kinds[name][1]
    layouts = [each.flatten()[0].item() for each in formats if each.numel()]
    reason = ""
    if any(layouts):
        reason = f"its weight_format is {layouts[0]}, arranged for one kind of GPU; 0 is supported"
    elif kinds[scb] != (torch.float32, shape[:1]):
        reason = f"its SCB is {kinds[scb][0]} {list(kinds[scb][1])}, and it has {shape[0]} rows"
    if reason:
        return Weight("bitsandbytes int8", shape, parts, None, reason)
    fmt = "int8:channel0:fp32:full"
    decode = partial(_decode_int8, fmt=fmt, shape=shape)
    values = torch.float32
    return Weight("bitsandbytes int8", shape, parts, fmt, "", decode, None, values, _int8_values)


def _decode_int8(parts: Parts, *, fmt: str, shape: tuple[int, ...]) -> QTensor:
    """Its product has three factors, which no format has: scales are fl(absmax * 1/127)."""
    return assembling.quantized(
        fmt, shape, {"codes": parts["codes"], "scale": parts["absmax"] * _INT8}
    )


def _int8_values(parts: Parts) -> Tensor:
    return parts["codes"] * parts["absmax"].view(-1, 1) * _INT8
