# SPDX-License-Identifier: BSD-3-Clause
"""Layouts that no format of blockscale can hold: known by their tensors' names, and refused."""

from collections.abc import Mapping
from typing import Any

from blockscale.core.untrusted import quote
from blockscale.export.checkpoints.layouts import Kinds, LayoutTensors, Read, Weight

PRODUCER = "an unsupported layout"
METHODS = ()

_VECTORS = "codes of vectors in a codebook, which no format here has"
# {first of the tensors' names: (who, the others, why)}
_LAYOUTS = {
    "trellis": ("EXL3", ("suh", "svh"), "codes along a trellis of rotated weights"),
    "q_weight": (
        "EXL2", ("q_scale", "q_scale_max", "q_groups", "q_perm", "q_invperm"),
        "rows with different numbers of bits",
    ),
    "B": ("Marlin", ("s",), "codes rearranged for one GPU kernel (AutoGPTQ can unpack them)"),
    "codes": ("AQLM", ("codebooks", "scales"), _VECTORS),
    "Qidxs": ("QuIP#", ("SU", "SV", "Wscale"), _VECTORS),
    "indices": ("VPTQ", ("centroids",), _VECTORS),
}  # fmt: skip
_NAMED = ("higgs", "spqr", "vptq", "aqlm", "exl3", "exl2", "quip", "eetq", "fp_quant", "sinq")


def find(kinds: Kinds, config: Mapping[str, Any], read: Read) -> LayoutTensors:
    """Modules with the tensors of one of them."""
    del read
    tensors, method = LayoutTensors(), config.get("quant_method")
    for name in kinds:
        base, _, last = name.rpartition(".")
        who, others, why = _LAYOUTS.get(last, ("", (), ""))
        there = {f"{base}.{each}": f"{base}.{each}" for each in others if f"{base}.{each}" in kinds}
        if not who or f"{base}.{others[0]}" not in kinds or not base:
            continue
        reason = f"{who} stores {why}: dequantize it with its own library first"
        tensors.add(f"{base}.weight", Weight(who, (), {"codes": name} | there, None, reason))
        tensors.evidence = tensors.evidence or f"{quote(name)} is {who}'s"
    if method in _NAMED:
        tensors.warnings.append(f"its configuration names {method}, which is not supported")
    return tensors
