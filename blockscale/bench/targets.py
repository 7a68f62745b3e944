"""What the project promises, to be marked in tables: met or not."""

import re
from math import inf

from blockscale.bench.case import Targets
from blockscale.core.format import Format

MATRIX = (4096, 4096)  # the shape that promises are about
MODEL: Targets = {"relative": ("at_most", 0.25), "cosine": ("at_least", 0.997)}
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
_WEIGHT_OF_COPY = 0.6  # weight-only, one row: of the copy's bandwidth, in the weight's real bytes


def primitive(op: str, fmt: Format, shape: tuple[int, ...], dtype: str) -> Targets:
    """The share of the copy's bandwidth that a primitive must reach."""
    if shape != MATRIX or dtype not in ("float32", "bfloat16"):
        return {}
    limits = [
        0.90,
        0.70 if fmt.rounding == "stochastic" else inf,
        0.70 if _ACROSS.fullmatch(str(fmt.block)) else inf,
        0.75 if dtype == "bfloat16" else inf,
        0.80 if op == "quantize" and fmt.bits in (4, 6) else inf,
    ]
    return {"of_copy": ("at_least", min(limits))}


def linear(weight: str, given: str | None, shape: tuple[int, int], rows: int) -> Targets:
    """The most time relative to torch's fp32, and for one row the least bandwidth."""
    rule = _LINEAR.get((weight, given))
    if shape != MATRIX or rule is None:
        return {}
    found: dict[str, tuple[str, float]] = {}
    if rows in rule:
        found["relative"] = ("at_most", rule[rows])
    if rows == 1 and given is None:
        found["of_copy"] = ("at_least", _WEIGHT_OF_COPY)
    return found


def met(targets: Targets, figures: dict[str, float]) -> bool | None:
    """Whether every figure that has a target reaches it; None if none has one."""
    if not targets:
        return None
    return all(
        figures[name] >= value if side == "at_least" else figures[name] <= value
        for name, (side, value) in targets.items()
    )
