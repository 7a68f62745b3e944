# SPDX-License-Identifier: BSD-3-Clause
"""Codes one in an element, with scales beside them: known by names, dtypes and sizes alone.

float8 and int8 weights with `weight_scale_inv` (DeepSeek, Qwen: tiles), `weight_scale`
(compressed-tensors, ModelOpt, FBGEMM), `scale_weight` (ComfyUI) or torchao's `_weight_scale`, where
no configuration names a producer. All of them multiply, whatever the name says. Packed codes that
no other layout has taken are refused by name.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from blockscale.core.parse import parse
from blockscale.core.untrusted import quote
from blockscale.export.checkpoints.assembling import BYTES, FLOATS, assemble, block_of, tile_of
from blockscale.export.checkpoints.layouts import Kinds, LayoutTensors, Parts, Read, Weight
from blockscale.ops.tensor import QTensor, dtype_name, from_parts

PRODUCER = "scaled codes"
METHODS = ()
_ELEMENTS = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2", torch.int8: "int8"}
_SCALES = {
    torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16",
    torch.float8_e8m0fnu: "e8m0/given", torch.uint8: "e8m0/given",
}  # fmt: skip
_QDATA = "._weight_qdata"  # torchao


# Codes whose scales another layout would have taken with them: whose, and what is beside them
_PACKED = {
    ".qweight": ("GPTQ or AWQ", (".qzeros", ".scales", ".g_idx")),
    ".weight_packed": ("compressed-tensors", (".weight_scale", ".weight_shape")),
    ".W_q": ("HQQ", (".scale", ".zero")),
    ".weight._data": ("optimum-quanto", (".weight._scale", ".weight._shift")),
    ".weight._data._data": ("optimum-quanto", (".weight._scale", ".weight._shift")),
}


def find(kinds: Kinds, config: Mapping[str, Any], read: Read) -> LayoutTensors:
    """Other producers' quantized tensors among those that no other layout has taken."""
    del config, read
    tensors = LayoutTensors()
    for name in sorted(kinds):
        end = next((end for end in _PACKED if name.endswith(end)), None)
        if end is not None:
            producer, beside = _PACKED[end]
            reason = (
                f"{name} holds codes of {producer}, but the tensors beside them are not those "
                "of that layout: dequantize it with its own library first"
            )
            base = name.removesuffix(end)
            others = {f"{base}{each}" for each in beside} & kinds.keys()
            weight = Weight("packed", (), {"codes": name}, None, reason)
            tensors.add(f"{base}.weight", weight, *others)
        elif kinds[name][0] in _ELEMENTS and (scale := _scale_of(name, kinds)):
            _take(tensors, name, scale, kinds)
            tensors.evidence = tensors.evidence or f"{quote(scale)} is beside {quote(name)}"
    return tensors


def _beside(name: str) -> Iterator[str]:
    """The names that the scale of these codes may have."""
    owner, _, last = name.rpartition(".")
    if name.endswith(_QDATA):
        yield f"{owner}._weight_scale"
        return
    yield from (f"{name}_scale_inv", f"{name}_scale")
    if last == "weight":
        yield f"{owner}.scale_weight"


def _scale_of(name: str, kinds: Kinds) -> str | None:
    return next((each for each in _beside(name) if each in kinds), None)


def _take(tensors: LayoutTensors, name: str, scale: str, kinds: Kinds) -> None:
    """Note how codes and their scale are decoded, or why they are not."""
    weight = name.removesuffix(_QDATA) + ".weight" if name.endswith(_QDATA) else name
    zero_point = scale.removesuffix("_inv").removesuffix("_scale") + "_zero_point"
    parts = {"codes": name, "scale": scale}
    if zero_point in kinds:
        parts["zero_point"] = zero_point
    (dtype, shape), (scale_dtype, scale_shape) = kinds[name], kinds[scale]
    assert dtype is not None  # it is one of _ELEMENTS
    block = tile_of(shape, scale_shape)
    spelling = _SCALES.get(scale_dtype) if scale_dtype is not None else None
    whole = dtype is not torch.int8
    if block is None or spelling is None or (spelling == "e8m0/given" and not whole):
        reason = (
            f"{scale} is {scale_dtype} {list(scale_shape)}, which matches no block of {name}, "
            f"{dtype} {list(shape)}"
        )
        tensors.add(weight, Weight(dtype_name(dtype), shape, parts, None, reason))
        return
    option = ":asym" if "zero_point" in parts else ":full" * (not whole)
    fmt = str(parse(f"{_ELEMENTS[dtype]}:{block}:{spelling}{option}"))
    decode = partial(_decode, fmt=fmt, shape=shape)
    tensors.add(weight, Weight(dtype_name(dtype), shape, parts, fmt, "", decode))


def _decode(stored: Parts, *, fmt: str, shape: tuple[int, ...]) -> QTensor:
    """Parts as the format stores them: e4m3 as bits, scales of its shape, int32 zero points."""
    parts = dict(stored)
    codes = parts.pop("codes")
    for part, (dtype, target) in parse(fmt).stored(shape).items():
        parts[part] = _as(parts[part], dtype).reshape(target)
    parts["codes"] = codes if codes.dtype == torch.int8 else codes.view(torch.uint8)
    return from_parts(parse(fmt), shape[-1], parts)


def _as(part: Tensor, dtype: torch.dtype) -> Tensor:
    """A scale or zero point in the dtype of its format; bytes of a float keep their bits."""
    if part.dtype == dtype:
        return part
    return part.view(torch.uint8) if dtype == torch.uint8 else part.to(dtype)


# What several producers' layouts have in common: they import it from here.

_FLOAT8 = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}


def float8(kind: str, parts: Mapping[str, str], kinds: Kinds) -> Weight | None:
    """A weight of float8 `codes` under `scale`; None where the codes are no float8.

    The block follows from the shapes alone, never from a configuration.
    """
    (dtype, shape), (scale_dtype, scale) = kinds[parts["codes"]], kinds[parts["scale"]]
    element = _FLOAT8.get(dtype) if dtype is not None else None
    if element is None:
        return None
    block = block_of(shape, scale)
    token = "e8m0/given" if scale_dtype in BYTES else FLOATS.get(scale_dtype or torch.bool)
    if block is None or token is None:
        text = f"{parts['scale']} is {scale_dtype} {list(scale)}, which matches no block of codes"
        return Weight(kind, shape, parts, None, f"{text} {list(shape)}: it fits no block")
    spelling = f"{element}:{block}:{token}"
    decode = partial(assemble, spelling, shape)
    return Weight(kind, shape, parts, str(parse(spelling)), decode=decode)
