# SPDX-License-Identifier: BSD-3-Clause
"""FBGEMM's FP8 (Llama 3.1 405B): e4m3 `weight` and float32 `weight_scale` [out, 1]."""

from collections.abc import Mapping
from typing import Any

from blockscale.export.checkpoints.layouts import Kinds, LayoutTensors, Read
from blockscale.export.checkpoints.layouts.scaled_codes import float8

PRODUCER = "FBGEMM"
METHODS = ("fbgemm_fp8",)


def find(kinds: Kinds, config: Mapping[str, Any], read: Read) -> LayoutTensors:
    """Under its configuration, float8 codes with `…_scale`."""
    del read
    tensors = LayoutTensors()
    if config.get("quant_method") not in METHODS:
        return tensors
    for name in sorted(kinds):
        if f"{name}_scale" in kinds:
            weight = float8("fbgemm_fp8", {"codes": name, "scale": f"{name}_scale"}, kinds)
            if weight is not None:
                tensors.add(name, weight)
    if tensors.weights:
        tensors.evidence = str(config["evidence"])
    return tensors
