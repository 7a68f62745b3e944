"""What a linear layer takes at least: its weight's bytes over bandwidth, operations over rate."""

from collections.abc import Iterator
from typing import Any

Run = dict[str, Any]
_FLOAT = {"cpu": ("torch fp32", "onnxruntime fp32"), "cuda": ("torch bf16",)}
# Multiply-adds: VNNI does four int8 where fp32 does one, tensor cores two where bf16 does.
_INTEGERS = {"cpu": 4, "cuda": 2}


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


def kind(run: Run) -> str:
    """The device that was measured, without its number."""
    return str(run["settings"]["device"]).partition(":")[0]


def baseline(run: Run) -> str:
    """The float layer that others are compared with."""
    return _FLOAT[kind(run)][0]


def float_rate(run: Run) -> float:
    """Operations a second of the best float product of the run, whoever's it is."""
    return max((case["operations"] / line["seconds"] for case, line in _floats(run)), default=0.0)


def _floats(run: Run) -> Iterator[tuple[Run, Run]]:
    names = _FLOAT[kind(run)]
    for case in run["cases"]:
        if case["group"] == "linear":
            yield from ((case, line) for line in case["contestants"] if line["name"] in names)


def floors(run: Run) -> dict[str, dict[int, float]]:
    """{recipe: {m: floor relative to the float layer}} of the first shape; or nothing."""
    copied, rate = bandwidth(run), float_rate(run)
    cases = [case for case in run["cases"] if case["group"] == "linear"]
    if not (copied and rate):
        return {}
    found: dict[str, dict[int, float]] = {}
    for case in cases:
        if (case["k"], case["n"]) != (cases[0]["k"], cases[0]["n"]):
            continue
        float_layer = next(
            line["seconds"] for line in case["contestants"] if line["name"] == baseline(run)
        )
        for line in case["contestants"]:
            if line["kind"] == "ours":
                faster = _INTEGERS[kind(run)] if " x " in line["name"] else 1
                least = max(line["bytes"] / copied, case["operations"] / rate / faster)
                found.setdefault(line["name"], {})[case["m"]] = least / float_layer
    return found
