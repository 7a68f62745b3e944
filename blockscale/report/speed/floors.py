"""What a linear layer takes at least: its weight's bytes over bandwidth, operations over rate."""

from collections.abc import Iterator

from blockscale.report.speed.reading import FLOAT_LAYERS, Run, baseline, kind, of_group

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


def float_rate(run: Run) -> float:
    """Operations a second of the best float product of the run, whoever's it is."""
    return max((case["operations"] / line["seconds"] for case, line in _floats(run)), default=0.0)


def _floats(run: Run) -> Iterator[tuple[Run, Run]]:
    """(a case, the line of a float layer in it)."""
    names = FLOAT_LAYERS[kind(run)]
    for case in of_group(run, "linear"):
        yield from ((case, line) for line in case["contestants"] if line["name"] in names)


def floors(run: Run) -> dict[str, dict[int, float]]:
    """{recipe: {m: floor relative to the float layer}} of the first shape; or nothing."""
    copied, rate = bandwidth(run), float_rate(run)
    cases = of_group(run, "linear")
    if not (copied and rate):
        return {}
    relative: dict[str, dict[int, float]] = {}
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
                relative.setdefault(line["name"], {})[case["m"]] = least / float_layer
    return relative
