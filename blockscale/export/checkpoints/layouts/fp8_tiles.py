# SPDX-License-Identifier: BSD-3-Clause
"""FP8 with `weight_scale_inv`: DeepSeek V3, Qwen3, MiniMax; transformers' FineGrainedFP8Config.

Despite its name the scale multiplies. Tiles are 128 x 128, the last ones partial; scales are
float32, or powers of two (`scale_fmt` ue8m0) in bytes. Experts of later DeepSeeks are e2m1, two an
int8 byte, with a power of two for each 32. Which it is, shapes say.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from blockscale.export.checkpoints.assembling import BYTES, assemble
from blockscale.export.checkpoints.layouts import Kinds, LayoutTensors, Read, Weight
from blockscale.export.checkpoints.layouts.scaled_codes import float8

PRODUCER = "FP8 tiles (DeepSeek, transformers)"
METHODS = ("fp8",)
_INV = "_scale_inv"
_FP4 = "e2m1:group32:e8m0/given"


def find(kinds: Kinds, config: Mapping[str, Any], read: Read) -> LayoutTensors:
    """Codes with `…_scale_inv` beside them; under its configuration with `…scale`, too."""
    del read
    tensors, mine = LayoutTensors(), config.get("quant_method") in METHODS
    for name in sorted(kinds):
        scale = _scale_of(name, kinds, mine)
        if scale is None:
            continue
        parts = {"codes": name, "scale": scale}
        weight = _packed(parts, kinds) or float8("fp8", parts, kinds)
        if weight is not None:
            tensors.add(name, weight)
    if tensors.weights:
        first = next(iter(tensors.weights.values())).parts["scale"]
        tensors.evidence = str(config["evidence"]) if mine else f"it has {first}"
        tensors.warnings += _contradictions(config.get("weight_block_size"), tensors)
    return tensors


def _contradictions(size: object, tensors: LayoutTensors) -> list[str]:
    """Weights whose scales are of other tiles than the configuration says."""
    if not isinstance(size, list) or len(size) != 2:
        return []
    text = f"tile{size[0]}x{size[1]}"
    other = [
        f"{name} ({weight.format.split(':')[1]})" for name, weight in tensors.weights.items()
        if weight.format and not _may_be(size, weight)
    ]  # fmt: skip
    if not other:
        return []
    return [f"its configuration says {text}, and {len(other)} tensors are not, such as {other[0]}"]


def _may_be(size: list[Any], weight: Weight) -> bool:
    """Whether tiles of this size, cut at a matrix's edges, can be those of a weight."""
    block = str(weight.format).split(":")[1]
    rows, columns = (min(n, of) for n, of in zip(weight.shape[-2:], size, strict=True))
    sizes = {f"tile{rows}x{columns}", f"group{columns}" if rows == 1 else "tensor"}
    return block in sizes or (block == "tensor" and (rows, columns) == weight.shape[-2:])


def _scale_of(name: str, kinds: Kinds, mine: bool) -> str | None:
    places = [f"{name}{_INV}"]
    if mine and name.endswith("weight"):
        places += [f"{name}_scale", f"{name.removesuffix('weight')}scale"]
    return next((place for place in places if place in kinds), None)


def _packed(parts: Mapping[str, str], kinds: Kinds) -> Weight | None:
    """Two e2m1 in each int8 byte, 16 bytes a scale."""
    (dtype, shape), (scale_dtype, scale) = kinds[parts["codes"]], kinds[parts["scale"]]
    if dtype not in (torch.int8, torch.uint8) or scale_dtype not in BYTES or len(shape) < 2:
        return None
    if scale[:-1] != shape[:-1] or shape[-1] != 16 * scale[-1]:
        return None
    whole = (*shape[:-1], 2 * shape[-1])
    return Weight("fp4 of 32", whole, parts, _FP4, decode=partial(assemble, _FP4, whole))
