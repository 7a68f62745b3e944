"""compressed-tensors' weights of one code an element, and its packed floats of 4 and 6 bits.

nvfp4-pack-quantized: value = e2m1 · fl(scale / global scale), which divides. mxfp4 and mxfp6: a
power of two for each 32. Others: int8 or e4m3 under scales for the tensor, rows, groups or tiles.
"""

from collections.abc import Mapping
from functools import partial

import torch

from blockscale.core.parse import parse
from blockscale.export.checkpoints.assembling import BYTES, FLOATS, assembled, block_of
from blockscale.export.checkpoints.layout import Kinds, Parts, Weight
from blockscale.export.checkpoints.layouts.compressed_tensors.groups import Arguments, number
from blockscale.ops.tensor import QTensor

_ELEMENTS = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2", torch.int8: "int8"}
_INNER = (torch.float8_e4m3fn, torch.uint8)
Shape = tuple[int, ...]


def packed_floats(parts: Mapping[str, str], kinds: Kinds) -> Weight:
    """A weight whose codes are packed in uint8."""
    _, bytes_ = kinds[parts["codes"]]
    dtype, scale = kinds.get(parts.get("scale", ""), (None, ()))
    told = f"its codes are uint8 {list(bytes_)} and its scales {dtype} {list(scale)}"
    if len(bytes_) < 2 or len(scale) != len(bytes_) or scale[:-1] != bytes_[:-1] or not scale[-1]:
        return Weight("packed floats", bytes_, parts, None, f"{told}, which fit no block")
    each, rest = divmod(bytes_[-1], scale[-1])  # bytes under one scale
    if "global_scale" in parts and dtype in _INNER and (each, rest) == (8, 0):
        kind, spelling, shape = "nvfp4-pack-quantized", "e2m1:group16:e4m3/inv", bytes_[-1] * 2
    elif dtype in BYTES and (each, rest) == (16, 0):
        kind, spelling, shape = "mxfp4-pack-quantized", "e2m1:group32:e8m0/given", bytes_[-1] * 2
    elif dtype in BYTES and (each, rest) == (24, 0):
        kind, spelling = "mxfp6-pack-quantized", "e2m3:group32:e8m0/given"
        shape = bytes_[-1] * 4 // 3
    else:
        return Weight("packed floats", bytes_, parts, None, f"{told}, of no known format")
    whole = (*bytes_[:-1], shape)
    decode = partial(_decode, spelling, whole)
    return Weight(kind, whole, parts, str(parse(spelling)), decode=decode)


def one_an_element(
    parts: Mapping[str, str], kinds: Kinds, groups: list[Arguments]
) -> Weight | None:
    """A weight of int8 or float8 elements with scales; None for a tensor that is neither."""
    dtype, shape = kinds[parts["codes"]]
    if dtype not in _ELEMENTS or "scale" not in parts:
        return None
    scale_dtype, scale = kinds[parts["scale"]]
    block = block_of(shape, scale, next(iter(number(groups, "group_size")), 0))
    power = scale_dtype in BYTES
    token = "e8m0/given" if power else FLOATS.get(scale_dtype or torch.bool)
    integer = dtype == torch.int8
    kind = "int-quantized" if integer else "float-quantized"
    if block is None or token is None or (power and integer) or len(shape) < 2:
        told = f"its scales are {scale_dtype} {list(scale)} for codes {list(shape)}"
        return Weight(kind, shape, parts, None, f"{told}, which fit no block")
    if power:
        kind = "mxfp8-quantized"
    option = (":asym" if "zero_point" in parts else ":full") if integer else ""
    spelling = f"{_ELEMENTS[dtype]}:{block}:{token}{option}"
    decode = partial(_decode, spelling, shape)
    return Weight(kind, shape, parts, str(parse(spelling)), decode=decode)


def _decode(spelling: str, shape: Shape, parts: Parts) -> QTensor:
    held = {"codes": parts["codes"], "scale": parts["scale"]}
    if "/inv" in spelling:
        held["outer"] = parts["global_scale"]
    if spelling.endswith(":asym"):
        held["zero_point"] = parts["zero_point"]
    return assembled(spelling, shape, held)
