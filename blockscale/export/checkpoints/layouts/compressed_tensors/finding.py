"""Which tensors of a directory are compressed-tensors' weights.

Told by `quant_method`, or by names that end in `.weight_packed`. Bits come from the shapes; what
these do not tell (codes of 7 bits in the packing of 2025, groups that do not divide a row) from the
configuration of the module's group.
"""

from collections.abc import Mapping
from math import prod
from typing import Any

import torch

from blockscale.export.checkpoints.layout import Found, Kinds, Read, Weight
from blockscale.export.checkpoints.layouts.compressed_tensors.floats import (
    one_an_element,
    packed_floats,
)
from blockscale.export.checkpoints.layouts.compressed_tensors.groups import arguments, groups_of
from blockscale.export.checkpoints.layouts.compressed_tensors.inputs import find_inputs
from blockscale.export.checkpoints.layouts.compressed_tensors.integers import integers

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
_REMEDY = "no format here has that: save it densely with the library that wrote it"
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
