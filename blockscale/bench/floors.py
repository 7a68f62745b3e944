"""What a linear layer takes at least: its weight's bytes over bandwidth, operations over rate."""

from collections.abc import Iterator
from typing import Any

Run = dict[str, Any]
_FP32 = ("torch fp32", "onnxruntime fp32")
INT8_OVER_FP32 = 4  # multiply-adds: VNNI does four int8 in a lane where fp32 does one


def bandwidth(run: Run) -> float:
    """Bytes a second of the best copy of the run."""
    return 1e9 * max(
        (
            line["gigabytes_per_second"]
            for case in run["cases"]
            if case["name"].startswith("ceilings/copy/")
            for line in case["contestants"]
        ),
        default=0.0,
    )


def fp32_rate(run: Run) -> float:
    """Operations a second of the best fp32 product of the run, whoever's it is."""
    return max((case["operations"] / line["seconds"] for case, line in _fp32(run)), default=0.0)


def _fp32(run: Run) -> Iterator[tuple[Run, Run]]:
    for case in run["cases"]:
        if case["group"] == "linear":
            yield from ((case, line) for line in case["contestants"] if line["name"] in _FP32)


def floors(run: Run) -> dict[str, dict[int, float]]:
    """{recipe: {m: floor relative to torch's fp32}} of the first shape; empty without ceilings."""
    copied, rate = bandwidth(run), fp32_rate(run)
    cases = [case for case in run["cases"] if case["group"] == "linear"]
    if not (copied and rate):
        return {}
    found: dict[str, dict[int, float]] = {}
    for case in cases:
        if (case["k"], case["n"]) != (cases[0]["k"], cases[0]["n"]):
            continue
        fp32 = next(line["seconds"] for line in case["contestants"] if line["name"] == _FP32[0])
        for line in case["contestants"]:
            if line["kind"] == "ours":
                faster = INT8_OVER_FP32 if " x " in line["name"] else 1
                least = max(line["bytes"] / copied, case["operations"] / rate / faster)
                found.setdefault(line["name"], {})[case["m"]] = least / fp32
    return found
