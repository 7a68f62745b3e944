# SPDX-License-Identifier: BSD-3-Clause
"""What the project promises, to be marked in tables: met or not."""

import re
from math import inf

from blockscale.bench.requests import Targets
from blockscale.core.format import Format

MATRIX = (4096, 4096)  # the shape that promises are about
GPU_MATRIX = (16384, 16384)
MODEL: Targets = {"relative": ("at_most", 0.25), "cosine": ("at_least", 0.997)}
GRAPH: Targets = {"relative": ("at_most", 0.28), "cosine": ("at_least", 0.99)}
PUBLIC: Targets = {"microseconds": ("at_most", 12.0)}
OP: Targets = {"over_torch": ("at_most", 5.0)}
_ACROSS = re.compile(r"tile.*|group.*@.*")  # blocks that are not a run of memory

# {(weight, input): {m: the most time relative to torch's fp32}} for k = n = 4096
_LINEAR = {
    ("int8_channel", "int8_token"): {1: 0.04, 32: 0.07, 512: 0.115},
    ("int4:group32:fp32", "int8_token"): {1: 0.035, 32: 0.09, 512: 0.16},
    ("mxint8", "mxint8"): {512: 0.18},
    ("bfp8", "bfp8"): {512: 0.18},
    ("mxfp4", None): {512: 1.0},
    ("mxfp8", None): {512: 1.0},
    ("nvfp4", None): {512: 1.0},
}
# {(weight, input): the most time relative to torch's bf16} for k = n = 8192, m = 4096 on a GPU
_GPU_LINEAR: dict[tuple[str, str | None], float] = {
    ("int8_channel", "int8_token"): 1 / 1.35,
    ("e4m3:channel0:fp32", "e4m3:token:fp32"): 1 / 1.9,
    ("mxint8", "mxint8"): 1 / 0.95,
    ("bfp8", "bfp8"): 1 / 0.95,
    ("mxfp8", "mxfp8"): 1 / 0.95,
    ("int8_channel", None): 1 / 0.85,
    ("mxfp8", None): 1 / 0.85,
    ("bfp8", None): 1 / 0.85,
    ("int4", None): 1 / 0.85,
    ("mxfp4", None): 1 / 0.85,
    ("nvfp4", None): 1 / 0.85,
}
_GPU_SWEEP, _GPU_SQUARE = (8192, 28672), (8192, 8192)
_NO_CLIFF = 1.05  # weight-only, any number of rows
_GPU_OF_COPY = 0.75
_WEIGHT_OF_COPY = 0.6  # weight-only, one row: of the copy's bandwidth, in the weight's real bytes


def primitive(op: str, fmt: Format, shape: tuple[int, ...], dtype: str) -> Targets:
    """The share of the copy's bandwidth that a primitive must reach."""
    if dtype not in ("float32", "bfloat16") or shape not in (MATRIX, GPU_MATRIX):
        return {}
    if shape == GPU_MATRIX:
        return {"of_copy": ("at_least", _gpu_primitive(op, fmt, dtype))}
    limits = [
        0.90,
        0.70 if fmt.rounding == "stochastic" else inf,
        0.70 if _ACROSS.fullmatch(str(fmt.block)) else inf,
        0.75 if dtype == "bfloat16" else inf,
        0.80 if op == "quantize" and fmt.bits in (4, 6) else inf,
    ]
    return {"of_copy": ("at_least", min(limits))}


def _gpu_primitive(op: str, fmt: Format, dtype: str) -> float:
    narrow = 0.87 if op == "quantize" and fmt.bits in (4, 6) else 0.93
    along = _ACROSS.fullmatch(str(fmt.block)) is None and str(fmt.block) != "token"
    limits = [
        0.95 if dtype == "float32" else narrow,
        inf if along else 0.85,
        0.70 if fmt.rounding == "stochastic" else inf,
    ]
    return min(limits)


def linear(
    weight: str, text: str | None, shape: tuple[int, int], rows: int, kind: str = "cpu"
) -> Targets:
    """The most time relative to torch's float layer, and for few rows the least bandwidth."""
    if kind != "cpu":
        return _gpu_linear(weight, text, shape, rows)
    rule = _LINEAR.get((weight, text))
    if shape != MATRIX or rule is None:
        return {}
    goals: dict[str, tuple[str, float]] = {}
    if rows in rule:
        goals["relative"] = ("at_most", rule[rows])
    if rows == 1 and text is None:
        goals["of_copy"] = ("at_least", _WEIGHT_OF_COPY)
    return goals


def _gpu_linear(weight: str, text: str | None, shape: tuple[int, int], rows: int) -> Targets:
    rule = _GPU_LINEAR.get((weight, text))
    if shape == _GPU_SQUARE and rows == 4096 and rule:
        return {"relative": ("at_most", round(rule, 3))}
    goals: dict[str, tuple[str, float]] = {}
    if shape == _GPU_SWEEP and text is None:
        goals["relative"] = ("at_most", _NO_CLIFF)
        if rows in (1, 16) and rule:
            goals["of_copy"] = ("at_least", _GPU_OF_COPY)
    return goals


def are_met(targets: Targets, figures: dict[str, float]) -> bool | None:
    """Whether every figure that has a target reaches it; None if none has one."""
    if not targets:
        return None
    return all(
        figures[name] >= value if side == "at_least" else figures[name] <= value
        for name, (side, value) in targets.items()
    )
