"""Ops on codes and floats: dequantize, compute, quantize as one op. One file an op."""

import importlib

from blockscale.core.discover import import_all
from blockscale.ops.fused.define import FUSED as FUSED
from blockscale.ops.fused.define import Fused as Fused
from blockscale.ops.fused.define import fused as fused
from blockscale.ops.fused.match import Match as Match
from blockscale.ops.fused.match import match as match

_FAMILIES = (
    *("products", "arithmetic", "functions", "activations"),
    *("norms", "reductions", "joining"),
)
for _family in _FAMILIES:
    _folder = importlib.import_module(f"{__name__}.{_family}")
    import_all(_folder.__name__, _folder.__path__)
