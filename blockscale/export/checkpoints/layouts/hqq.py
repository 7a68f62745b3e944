# SPDX-License-Identifier: BSD-3-Clause
"""HQQ (hqq 0.2.8, core/quantize.py and core/bitpack.py), as its safetensors files have it.

A weight is a matrix [elements / group, group] (axis 1) or [group, elements / group] (axis 0), whose
rows are packed: the first part of them in the highest bits of bytes, for 3 bits of int32. Zero
points are floats. A layer's settings are tensors beside it, text as one byte a character.
"""

from collections.abc import Mapping
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from blockscale.core.untrusted import quote
from blockscale.export.checkpoints import assembling
from blockscale.export.checkpoints.layouts import Kinds, LayoutTensors, Parts, Read, Weight
from blockscale.ops.tensor import QTensor

PRODUCER = "HQQ"
METHODS = ("hqq",)
_SETTINGS = (
    "nbits", "axis", "group_size", "shape", "packing", "compute_dtype", "view_as_float",
    "quant_scale", "quant_zero",
)  # fmt: skip
_BESIDE = (
    *_SETTINGS, "unpack_view_dtype", "offload_meta", "encoded_state_dict", "stores_quant_config",
    "channel_wise", "optimize", "round_zero",
)  # fmt: skip
_PACKINGS = {  # {name: (bits, dtype of words, codes in one)}
    "8bit_u8": (8, torch.uint8, 1), "4bit_u8": (4, torch.uint8, 2), "2bit_u8": (2, torch.uint8, 4),
    "1bit_u8": (1, torch.uint8, 8), "3bit_32": (3, torch.int32, 10),
}  # fmt: skip
_DTYPES = {f"torch.{n}": getattr(torch, n) for n in ("float32", "float16", "bfloat16")}


def find(kinds: Kinds, config: Mapping[str, Any], read: Read) -> LayoutTensors:
    """Modules with W_q, scale and zero."""
    del config
    tensors = LayoutTensors()
    bases = [name.removesuffix(".W_q") for name in kinds if name.endswith(".W_q")]
    bases = [base for base in bases if {f"{base}.scale", f"{base}.zero"} <= kinds.keys()]
    there = {base: [s for s in _SETTINGS if f"{base}.{s}" in kinds] for base in bases}
    small = read([f"{base}.{s}" for base, settings in there.items() for s in settings])
    for base, settings in there.items():
        data = {setting: small[f"{base}.{setting}"] for setting in settings}
        beside = [f"{base}.{each}" for each in _BESIDE if f"{base}.{each}" in kinds]
        tensors.add(f"{base}.weight", _weight(base, data, kinds), *beside)
        tensors.evidence = tensors.evidence or f"{quote(base)} has W_q, scale and zero, as HQQ"
    return tensors


def _weight(base: str, tensors: Mapping[str, Tensor], kinds: Kinds) -> Weight:
    parts = {"codes": f"{base}.W_q", "scale": f"{base}.scale", "zero_point": f"{base}.zero"}
    missing = [each for each in ("nbits", "axis", "group_size", "shape") if each not in tensors]
    if missing:
        return Weight("hqq", (), parts, None, f"its {missing[0]} is missing beside its codes")
    bits, axis, size = (_number(tensors[each]) for each in ("nbits", "axis", "group_size"))
    sizes = tensors["shape"].flatten()[:8]
    shape = () if sizes.is_floating_point() else tuple(map(int, sizes.tolist()))
    kind, name = f"hqq {bits} bits, axis {axis}", _text(tensors.get("packing"))
    name = name or next((n for n, (b, _, _) in _PACKINGS.items() if b == bits), "")
    reason = _refusal(tensors, name, bits, axis, size, shape)
    scale, zero = kinds[parts["scale"]][0], kinds[parts["zero_point"]][0]
    try:
        of_scale, of_zero = assembling.scale_type(scale), assembling.scale_type(zero)
    except ValueError as error:
        reason = reason or str(error)
    if reason or scale is None:
        return Weight(kind, shape, parts, None, reason)
    block = f"flat{size}@0" if axis == 0 else f"flat{size}"
    if axis == 1 and shape[-1] % size == 0:
        block = f"group{size}"
    fmt = f"uint{bits}:{block}:{of_scale}:asym({of_zero})"
    matrix = (prod(shape) // size, size) if axis == 1 else (size, prod(shape) // size)
    codes = partial(_codes, packing=_PACKINGS[name], matrix=matrix)
    decode = partial(_decode, codes=codes, fmt=fmt, shape=shape)
    dtype = _DTYPES.get(_text(tensors.get("compute_dtype")), torch.float16)
    values = partial(_values, codes=codes, shape=shape, dtype=dtype)
    whole = dtype == scale == zero == torch.float32
    return Weight(kind, shape, parts, fmt, "", decode, None, dtype, None if whole else values)


def _number(stored: Tensor) -> int:
    """A setting that is a number; -1, which none is, for anything else."""
    return -1 if stored.numel() != 1 or stored.is_floating_point() else int(stored)


def _text(stored: Tensor | None) -> str:
    """Settings that are text: a character a byte; empty for anything else."""
    if stored is None or stored.dtype != torch.uint8:
        return ""
    return bytes(stored.flatten()[:64].tolist()).decode("latin-1")


def _refusal(
    tensors: Mapping[str, Tensor],
    name: str,
    bits: int,
    axis: int,
    size: int,
    shape: tuple[int, ...],
) -> str:
    """Why a module cannot be read; empty where it can."""
    if any(each in tensors and bool(tensors[each].any()) for each in ("quant_scale", "quant_zero")):
        return "its scales or zero points are themselves quantized, which HQQ no longer supports"
    if name not in _PACKINGS or _PACKINGS[name][0] != bits:
        return (
            f"its packing is {quote(name)} for {bits} bits; known packings: {', '.join(_PACKINGS)}"
        )
    if axis not in (0, 1) or size < 1 or not shape or min(shape) < 1 or prod(shape) % size:
        return f"groups of {size} along axis {axis} do not divide its shape {list(shape)}"
    return ""


def _codes(
    stored: Tensor, *, packing: tuple[int, torch.dtype, int], matrix: tuple[int, int]
) -> Tensor:
    """Words -> codes uint8 of HQQ's matrix. Raises ValueError for another number of words."""
    bits, dtype, count = packing
    part = -(-matrix[0] // count)
    stored = assembling.as_bytes(stored.flatten()).view(dtype)  # view_as_float: the same bytes
    if stored.numel() != part * matrix[1]:
        raise ValueError(
            f"its codes take {stored.numel()} words, expected {part} rows of {matrix[1]}"
        )
    apart = [stored >> bits * (count - 1 - i) & 2**bits - 1 for i in range(count)]
    return torch.cat(apart).to(torch.uint8).view(-1, matrix[1])[: matrix[0]]


def _decode(parts: Parts, *, codes: Any, fmt: str, shape: tuple[int, ...]) -> QTensor:
    own_parts = {
        "codes": assembling.packed(codes(parts["codes"]).reshape(shape), fmt),
        "scale": parts["scale"],
        "zero_point": parts["zero_point"],
    }
    return assembling.quantized(fmt, shape, own_parts)


def _values(parts: Parts, *, codes: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Its own arithmetic, in its compute_dtype: a difference and a product, each rounded."""
    zero, scale = parts["zero_point"].to(dtype), parts["scale"].to(dtype)
    matrix = codes(parts["codes"])
    for each in (scale.shape, zero.shape):
        if len(each) != 2 or any(a not in (1, b) for a, b in zip(each, matrix.shape, strict=True)):
            sizes = f"{list(each)} do not match groups of codes {list(matrix.shape)}"
            raise ValueError(f"its scales or zero points {sizes}")
    tensor: Tensor = (matrix.to(dtype) - zero) * scale
    return tensor.reshape(shape)
