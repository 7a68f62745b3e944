"""How compressed-tensors quantizes the inputs of layers whose weights it stores.

Read are inputs in blocks whose scales readers choose alike: nvfp4 beside its `input_global_scale`,
by which x is multiplied, and OCP's microscaling formats. Of other inputs (integers, float8), whose
scales each reader chooses by a rule of its own, nothing is quantized here, and a warning says so.
"""

from collections.abc import Mapping
from typing import Any

import torch

from blockscale.export.checkpoints.layout import Found, Input, Kinds, Parts
from blockscale.export.checkpoints.layouts.compressed_tensors.groups import arguments, groups_of

_GLOBAL = ".input_global_scale"
_BESIDE = (_GLOBAL, ".input_scale", ".input_zero_point")
_MX = {(4, None): "e2m1", (4, "torch.uint8"): "e2m1", (8, "torch.uint8"): "e4m3"}


def find_inputs(found: Found, kinds: Kinds, config: Mapping[str, Any]) -> None:
    """Add what is known of the inputs of the layers that were found."""
    groups = groups_of(config, "input_activations")
    left = []
    for name in found.weights:
        module = name.removesuffix(".weight")
        told = next(filter(None, arguments(module, groups)), None)
        found.beside |= {f"{module}{end}" for end in _BESIDE} & kinds.keys()
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
            f"inputs of {left[0]}{more} are quantized by its readers and stay in float here"
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
