# SPDX-License-Identifier: BSD-3-Clause
"""NVIDIA ModelOpt (0.47: torch/quantization/qtensor, torch/export/quant_utils.py).

Told by `quant_method`, by hf_quant_config.json, or by names that end in `.weight_scale_2`. Of what
kind a weight is, its shapes and dtypes say: configurations name one algorithm for many.
"""

from collections.abc import Mapping
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from blockscale.core.pack import pack
from blockscale.core.parse import parse
from blockscale.export.checkpoints.assembling import BYTES, FLOATS, assemble, block_of
from blockscale.export.checkpoints.layouts import Kinds, LayoutTensors, Parts, Read, Weight
from blockscale.ops.tensor import QTensor

PRODUCER = "NVIDIA ModelOpt"
METHODS = ("modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed", "nvfp4")
_ELEMENTS = {torch.float8_e4m3fn: "e4m3", torch.int8: "int8"}
_E4M3 = torch.float8_e4m3fn
# {how the name of an algorithm begins: the kind of its weights}
_KINDS = {
    "NVFP4": "NVFP4", "W4A16_NVFP4": "NVFP4", "MXFP8": "MXFP8", "FP8": "FP8",
    "W4A16_AWQ": "INT4_AWQ", "W4A8_MXFP4": "MXFP4", "W8A8_SQ": "INT8", "W8A16": "INT8",
}  # fmt: skip
Shape = tuple[int, ...]


def find(kinds: Kinds, config: Mapping[str, Any], read: Read) -> LayoutTensors:
    """Weights with `weight_scale`, under its configuration or if one has `weight_scale_2`, too."""
    del read
    tensors, is_modelopt = LayoutTensors(), config.get("quant_method") in METHODS
    mine = is_modelopt or any(name.endswith(".weight_scale_2") for name in kinds)
    for name in sorted(kinds):
        if not mine or not name.endswith(".weight") or f"{name}_scale" not in kinds:
            continue
        parts = {"codes": name, "scale": f"{name}_scale"}
        if f"{name}_scale_2" in kinds:
            parts["outer"] = f"{name}_scale_2"
        weight = _packed(parts, kinds) if kinds[name][0] == torch.uint8 else _plain(parts, kinds)
        if weight is not None:
            tensors.add(name, weight)
        if f"{name.removesuffix('weight')}pre_quant_scale" in kinds:
            owner = name.removesuffix(".weight")
            tensors.warnings.append(f"the input of {owner} is multiplied by its pre_quant_scale")
    if tensors.weights:
        outers = [each.parts["outer"] for each in tensors.weights.values() if "outer" in each.parts]
        tensors.evidence = (
            str(config["evidence"]) if is_modelopt else f"it has {next(iter(outers), '')}"
        )
        tensors.warnings += _contradictions(str(config.get("quant_algo", "")), tensors)
    return tensors


def _contradictions(algorithm: str, tensors: LayoutTensors) -> list[str]:
    """Where no weight is of the one kind that the configuration names."""
    kind = next((kind for kind in _KINDS if algorithm.startswith(kind)), None)
    there = sorted({weight.kind for weight in tensors.weights.values()})
    if kind is None or _KINDS[kind] in there:
        return []
    return [f"its configuration says {algorithm}, but its weights are {', '.join(there)}"]


def _packed(parts: Mapping[str, str], kinds: Kinds) -> Weight:
    """Two codes a byte: nvfp4 and mxfp4 along rows, int4 (AWQ) along columns."""
    bytes_, (dtype, scale) = kinds[parts["codes"]][1], kinds[parts["scale"]]
    text = f"its codes are uint8 {list(bytes_)} and its scales {dtype} {list(scale)}"
    same_rows = len(scale) == len(bytes_) > 1 and scale[:-1] == bytes_[:-1]
    if same_rows and dtype == _E4M3 and bytes_[-1] == 8 * scale[-1] and "outer" in parts:
        outer = kinds[parts["outer"]][1]
        block = _of_stack(bytes_, outer)
        if block is None:
            reason = f"its weight_scale_2 is {list(outer)}, for codes {list(bytes_)}"
            return Weight("NVFP4", bytes_, parts, None, reason)
        spelling = f"e2m1:group16:(e4m3:{block}:fp32)"
        return _weight("NVFP4", spelling, (*bytes_[:-1], 2 * bytes_[-1]), parts)
    if same_rows and dtype in BYTES and bytes_[-1] == 16 * scale[-1]:
        shape = (*bytes_[:-1], 2 * bytes_[-1])
        return _weight("MXFP4", "e2m1:group32:e8m0/given", shape, parts)
    if dtype in FLOATS and len(bytes_) > 1 and "outer" not in parts:
        shape = (*bytes_[:-2], 2 * bytes_[-2], bytes_[-1])
        block = block_of(shape, scale)
        if block is not None:
            spelling = f"int4:{block}:{FLOATS[dtype]}:full"
            decode = partial(_rows_of_two, spelling, shape)
            return Weight("INT4_AWQ", shape, parts, str(parse(spelling)), decode=decode)
    return Weight("packed", bytes_, parts, None, f"{text}, of an unknown format")


def _of_stack(shape: Shape, outer: Shape) -> str | None:
    """Which block scales share a tensor scale: all, or those of each matrix of a stack."""
    if prod(outer) == 1:
        return "tensor"
    stacked = len(shape) == 3 and outer in (shape[:1], (shape[0], 1, 1))
    return "channel0" if stacked else None


def _plain(parts: Mapping[str, str], kinds: Kinds) -> Weight | None:
    """One code an element: float8 and int8, in tensors, rows, tiles or under powers of two."""
    (dtype, shape), (scale_dtype, scale) = kinds[parts["codes"]], kinds[parts["scale"]]
    if dtype not in _ELEMENTS:
        return None
    if len(scale) == 2 * len(shape):  # FP8_PB_WO: [out / 128, 1, in / 128, 1]
        scale = tuple(n for n in scale[::2])
    block = block_of(shape, scale)
    token = FLOATS.get(scale_dtype or torch.bool)
    if scale_dtype in BYTES and dtype == _E4M3:
        token = "e8m0/given"
    kind = "INT8" if dtype == torch.int8 else "MXFP8" if scale_dtype in BYTES else "FP8"
    if block is None or token is None or "outer" in parts:
        reason = f"its scales are {scale_dtype} {list(scale)} for codes {list(shape)}"
        return Weight(kind, shape, parts, None, f"{reason}, which match no block")
    option = ":full" if dtype == torch.int8 else ""
    return _weight(kind, f"{_ELEMENTS[dtype]}:{block}:{token}{option}", shape, parts)


def _weight(kind: str, spelling: str, shape: Shape, parts: Mapping[str, str]) -> Weight:
    decode = partial(assemble, spelling, shape)
    return Weight(kind, shape, parts, str(parse(spelling)), decode=decode)


def _rows_of_two(spelling: str, shape: Shape, parts: Parts) -> QTensor:
    """A byte holds an element of row 2i in its low bits, one of row 2i + 1 in its high bits."""
    codes: Tensor = parts["codes"]
    rows = torch.stack([codes & 15, codes >> 4], -2).reshape(shape)
    element = parse(spelling).element
    packed = pack(element.from_bits(rows), element)
    return assemble(spelling, shape, {"codes": packed, "scale": parts["scale"]})
