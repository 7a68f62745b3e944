# SPDX-License-Identifier: BSD-3-Clause
"""Which tensors of a directory are compressed-tensors' weights.

Told by `quant_method`, or by names that end in `.weight_packed`. Bits come from the shapes; what
these do not tell (codes of 7 bits in the packing of 2025, groups that do not divide a row) from the
configuration of the module's group.
"""

from collections.abc import Mapping
from functools import partial
from math import prod
from typing import Any

import torch

from blockscale.core.parse import parse
from blockscale.export.checkpoints.assembling import BYTES, FLOATS, assembled, block_of
from blockscale.export.checkpoints.layout import Found, Input, Kinds, Parts, Read, Weight
from blockscale.export.checkpoints.layouts.compressed_tensors.groups import (
    Arguments,
    arguments,
    groups_of,
    number,
)
from blockscale.export.checkpoints.layouts.compressed_tensors.integers import integers
from blockscale.ops.tensor import QTensor

PRODUCER = "compressed-tensors"
METHODS = ("compressed-tensors", "compressed_tensors")
_PACKED = ".weight_packed"
_BESIDE = {
    "scale": ".weight_scale", "zero_point": ".weight_zero_point", "shape": ".weight_shape",
    "order": ".weight_g_idx", "global_scale": ".weight_global_scale",
}  # fmt: skip
_SPARSE = {  # what the two legacy formats have beside `.weight_packed` or in the place of weights
    ".meta": "half of its codes are left out, for the Marlin kernel (marlin-24)",
    ".weight_mask": "half of its codes are left out by a mask",
    ".bitmask": "what a mask leaves out is not stored (sparse-24-bitmask)",
    ".weight_bitmask": "what a mask leaves out is not stored (sparse-bitmask)",
}
_REMEDY = "no format here has that: save it in a dense format with the library that wrote it"
_SMALL = 1 << 20  # elements of a shape or an order


def find(kinds: Kinds, config: Mapping[str, Any], read: Read) -> Found:
    """Packed weights, and under its configuration those of one code an element."""
    found, mine = Found(), config.get("quant_method") in METHODS
    groups = groups_of(config) if mine else []
    modules = [name.removesuffix(_PACKED) for name in sorted(kinds) if name.endswith(_PACKED)]
    beside = [f"{m}{_BESIDE[role]}" for m in modules for role in ("shape", "order")]
    small = read([name for name in beside if name in kinds and prod(kinds[name][1]) <= _SMALL])
    for module in modules:
        parts = {"codes": f"{module}{_PACKED}"} | _parts(module, kinds)
        told = arguments(module, groups)
        weight = _sparse(module, parts, kinds)
        if weight is None and kinds[parts["codes"]][0] == torch.uint8:
            weight = packed_floats(parts, kinds)
        found.add(f"{module}.weight", weight or integers(parts, kinds, small, told))
    if mine:
        for name in sorted(kinds.keys() - found.beside):
            _unpacked(found, name, kinds, groups)
        find_inputs(found, kinds, config)
    if found.weights:
        first = next(iter(found.weights.values())).parts["codes"]
        found.evidence = str(config["evidence"]) if mine else f"it has {first}"
    return found


def _parts(module: str, kinds: Kinds) -> dict[str, str]:
    places = {role: f"{module}{ending}" for role, ending in _BESIDE.items()}
    return {role: name for role, name in places.items() if name in kinds}


def _unpacked(
    found: Found, name: str, kinds: Kinds, groups: list[tuple[list[str], Mapping[str, Any]]]
) -> None:
    module, _, last = name.rpartition(".")
    if last in ("bitmask", "weight_bitmask", "compressed"):
        weight = _sparse(module, {"codes": name}, kinds)
        if weight is not None and f"{module}.weight" not in found.weights:
            found.add(f"{module}.weight", weight)
        return
    if last != "weight":
        return
    parts = {"codes": name} | _parts(module, kinds)
    if (one := one_an_element(parts, kinds, arguments(module, groups))) is not None:
        found.add(name, one)


def _sparse(module: str, parts: Mapping[str, str], kinds: Kinds) -> Weight | None:
    for ending, reason in _SPARSE.items():
        if f"{module}{ending}" in kinds or f"{module}.weight{ending}" in kinds:
            shape = kinds[parts["codes"]][1]
            return Weight("sparse", shape, parts, None, f"{reason}: {_REMEDY}")
    return None


# compressed-tensors' weights of one code an element, and its packed floats of 4 and 6 bits.
#
# nvfp4-pack-quantized: value = e2m1 · fl(scale / global scale), which divides. mxfp4 and mxfp6: a
# power of two for each 32. Others: int8 or e4m3 under scales for the tensor, rows, groups or
# tiles.


_ELEMENTS = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2", torch.int8: "int8"}
_INNER = (torch.float8_e4m3fn, torch.uint8)
Shape = tuple[int, ...]


def packed_floats(parts: Mapping[str, str], kinds: Kinds) -> Weight:
    """A weight whose codes are packed in uint8."""
    _, bytes_ = kinds[parts["codes"]]
    dtype, scale = kinds.get(parts.get("scale", ""), (None, ()))
    told = f"its codes are uint8 {list(bytes_)} and its scales {dtype} {list(scale)}"
    if len(bytes_) < 2 or len(scale) != len(bytes_) or scale[:-1] != bytes_[:-1] or not scale[-1]:
        return Weight("packed floats", bytes_, parts, None, f"{told}, which match no block")
    each, rest = divmod(bytes_[-1], scale[-1])  # bytes under one scale
    if "global_scale" in parts and dtype in _INNER and (each, rest) == (8, 0):
        kind, spelling, shape = "nvfp4-pack-quantized", "e2m1:group16:e4m3/inv", bytes_[-1] * 2
    elif dtype in BYTES and (each, rest) == (16, 0):
        kind, spelling, shape = "mxfp4-pack-quantized", "e2m1:group32:e8m0/given", bytes_[-1] * 2
    elif dtype in BYTES and (each, rest) == (24, 0):
        kind, spelling = "mxfp6-pack-quantized", "e2m3:group32:e8m0/given"
        shape = bytes_[-1] * 4 // 3
    else:
        return Weight("packed floats", bytes_, parts, None, f"{told}, of an unknown format")
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
        return Weight(kind, shape, parts, None, f"{told}, which match no block")
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


# How compressed-tensors quantizes the inputs of layers whose weights it stores.
#
# Read are inputs in blocks whose scales readers choose alike: nvfp4 beside its
# `input_global_scale`, by which x is multiplied, and OCP's microscaling formats. Of other inputs
# (integers, float8), whose scales each reader chooses by a rule of its own, nothing is quantized
# here, and a warning says so.


_GLOBAL = ".input_global_scale"
_BESIDE_INPUTS = (_GLOBAL, ".input_scale", ".input_zero_point")
_MX = {(4, None): "e2m1", (4, "torch.uint8"): "e2m1", (8, "torch.uint8"): "e4m3"}


def find_inputs(found: Found, kinds: Kinds, config: Mapping[str, Any]) -> None:
    """Add what is known of the inputs of the layers that were found."""
    groups = groups_of(config, "input_activations")
    left = []
    for name in found.weights:
        module = name.removesuffix(".weight")
        told = next(filter(None, arguments(module, groups)), None)
        found.beside |= {f"{module}{end}" for end in _BESIDE_INPUTS} & kinds.keys()
        if told is None:
            continue
        made = _input(module, told, kinds)
        if made is None:
            left.append(module)
        else:
            found.inputs[module] = made
    if left:
        more = f" and {len(left) - 1} more" * (len(left) > 1)
        found.warnings.append(
            f"inputs of {left[0]}{more} stay in float here; other readers of this file "
            "quantize them"
        )


def _input(module: str, told: Mapping[str, Any], kinds: Kinds) -> Input | None:
    bits, size = told.get("num_bits"), told.get("group_size")
    if told.get("type") != "float" or told.get("symmetric") is False:
        return None
    if (bits, told.get("strategy"), size) == (4, "tensor_group", 16):
        place = f"{module}{_GLOBAL}"
        return (
            Input("e2m1:group16:e4m3/inv/given", {"outer": place}, _outer)
            if place in kinds
            else None
        )
    element = _MX.get((bits, told.get("scale_dtype")))  # type: ignore[arg-type]
    if told.get("strategy") == "group" and size == 32 and element and told.get("dynamic") is True:
        return Input(f"{element}:group32:e8m0/floor", {}, dict)
    return None


def _outer(parts: Parts) -> Parts:
    return {"outer": parts["outer"].to(torch.float32).reshape(1, 1)}
