# SPDX-License-Identifier: BSD-3-Clause
"""ComfyUI's scaled FP8: `scale_weight` beside each e4m3 or e5m2 `weight`, and `scaled_fp8`.

Files that hold float8 without any scale are casts, and stay tensors of that dtype.
"""

from collections.abc import Mapping
from typing import Any

from blockscale.export.checkpoints.layouts import Kinds, LayoutTensors, Read
from blockscale.export.checkpoints.layouts.scaled_codes import float8

PRODUCER = "ComfyUI"
METHODS: tuple[str, ...] = ()


def find(kinds: Kinds, config: Mapping[str, Any], read: Read) -> LayoutTensors:
    """Float8 `….weight` with `….scale_weight`."""
    del config, read
    tensors = LayoutTensors()
    for name in sorted(kinds):
        owner, _, last = name.rpartition(".")
        scale = f"{owner}.scale_weight"
        if last == "weight" and scale in kinds:
            weight = float8("scaled_fp8", {"codes": name, "scale": scale}, kinds)
            if weight is not None:
                tensors.add(name, weight)
    if tensors.weights:
        tensors.evidence = f"it has {next(iter(tensors.weights.values())).parts['scale']}"
    return tensors
