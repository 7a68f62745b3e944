# SPDX-License-Identifier: BSD-3-Clause
"""A benchmark's run, read from its file as plain data and told in tables, plots and a page."""

from collections.abc import Iterator
from typing import Any

from blockscale.core.parse import formats
from blockscale.reporting.table import Table, size

# What is asked of a run's data: a file of `blockscale bench`, as JSON gives it back.

Run = dict[str, Any]  # a run, one of its cases, or a contestant's line in a case
FLOAT_LAYERS = {"cpu": ("torch fp32", "onnxruntime fp32"), "cuda": ("torch bf16",)}


def kind(run: Run) -> str:
    """The device that was measured, without its number: "cpu" or "cuda"."""
    return str(run["settings"]["device"]).partition(":")[0]


def baseline(run: Run) -> str:
    """The name of the float layer that others are compared with."""
    return FLOAT_LAYERS[kind(run)][0]


def of_group(run: Run, group: str) -> list[Run]:
    """The measured cases of a group, such as "linear"."""
    return [case for case in run["cases"] if case["group"] == group]


def mine(case: Run) -> Run:
    """The line of ours in a primitive's case."""
    return next(line for line in case["contestants"] if line["kind"] == "ours")


def instruction_set(machine: Run) -> str:
    """The one that blockscale's CPU kernels used on a run's machine, or why there was none."""
    native = machine["native"]
    return str(native["used"]) if isinstance(native, dict) else str(native)


# A run as tables of text, for a terminal and for a page.

LEGEND = (
    "✓ and ✗: the project's target is met or not; * runs on the reference, where no kernel does it"
)
_OPS = ("quantize", "dequantize", "fake_quantize")


def tables(run: Run) -> Iterator[Table]:
    """All tables of a run that have rows."""
    every = (
        _ceilings(run),
        _primitives(run, True),
        _primitives(run, False),
        _peers(run),
        _overhead(run),
        *_linears(run),
        _memory(run),
        _model(run),
    )
    yield from (table for table in every if table.rows)


def cell(line: Run, figure: str, digits: int = 2) -> str:
    """A figure with its mark; empty where there is none."""
    if figure not in line:
        return ""
    text = f"{line[figure]:.{digits}f}" + "*" * (line.get("backend") == "reference")
    if (target := line.get("targets", {}).get(figure)) is None:
        return text
    [(side, value)] = target.items()
    is_met = line[figure] >= value if side == "at_least" else line[figure] <= value
    return f"{text} ✓" if is_met else f"{text} ✗ {value:g}"


def _ceilings(run: Run) -> Table:
    rows = []
    for case in of_group(run, "ceilings"):
        what = f"{case['op']} "
        if case["op"] == "copy":
            what += f"{case['bytes'] / 2**20:.3g} MiB moved"
        else:
            what += f"k={case['k']} n={case['n']} m={case['m']}"
        for line in case["contestants"]:
            is_copy = "gigabytes_per_second" in line
            figure, unit = ("gigabytes_per_second", "GB/s") if is_copy else ("gigaflops", "GFLOP/s")
            name = line["name"].removeprefix("copy: ")
            rows.append((what, name, f"{line[figure]:.1f} {unit}"))
    return Table("Ceilings", ("what", "by", "rate"), rows, 2)


def _primitives(run: Run, in_catalogue: bool) -> Table:
    """Ours in fp32 for the catalogue (`in_catalogue`), or everything else."""
    shares: dict[tuple[str, str], dict[str, str]] = {}
    for case in of_group(run, "primitives"):
        plain = case["format"] in formats() and case["dtype"] == "float32"
        if plain == in_catalogue:
            row = shares.setdefault((case["format"], case["dtype"]), {})
            row[case["op"]] = cell(mine(case), "of_copy")
    rows = [(*key, *(row.get(op, "") for op in _OPS)) for key, row in shares.items()]
    what = "named formats" if in_catalogue else "other blocks, roundings and dtypes"
    note = "share of the best copy's bandwidth, in bytes that must move at least"
    return Table(f"Primitives: {what}", ("format", "dtype", *_OPS), rows, 2, note)


def _peers(run: Run) -> Table:
    rows = [
        (
            line["name"],
            case["op"],
            case["format"],
            cell(line, "of_copy"),
            cell(mine(case), "of_copy"),
        )
        for case in of_group(run, "primitives")
        for line in case["contestants"]
        if line["kind"] == "peer"
    ]
    header = ("peer", "op", "format", "peer", "ours")
    return Table("Primitives: peers", header, rows, 3, "share of the best copy's bandwidth")


def _overhead(run: Run) -> Table:
    rows = []
    for case in of_group(run, "overhead"):
        lines = {line["name"]: line for line in case["contestants"]}
        public, op, torch = (lines[name] for name in ("public function", "op", "torch"))
        cells = [cell(each, "microseconds", 1) for each in (public, op, torch)]
        rows.append((case["op"], case["format"], *cells, cell(op, "over_torch", 1)))
    header = ("op", "format", "function", "op", "torch", "op - torch")
    return Table(
        "Overhead on small tensors",
        header,
        rows,
        2,
        "microseconds a call: the public function, the op below it, torch's equal op",
    )


def _linears(run: Run) -> Iterator[Table]:
    """One a shape, with a last column for the bandwidth of one row."""
    cases = of_group(run, "linear")
    for k, n in dict.fromkeys((case["k"], case["n"]) for case in cases):
        here = [case for case in cases if (case["k"], case["n"]) == (k, n)]
        rows: dict[str, dict[str, str]] = {}
        for case in here:
            for line in case["contestants"]:
                if not line["name"].startswith("copy: "):
                    row = rows.setdefault(line["name"], {})
                    row[f"m={case['m']}"] = cell(line, "relative", 3)
                    if "of_copy" in line:
                        row[f"m={case['m']} of copy"] = cell(line, "of_copy")
        columns = [f"m={case['m']}" for case in here]
        columns += [
            name for m in columns if any((name := f"{m} of copy") in row for row in rows.values())
        ]
        lines = [(name, *(row.get(c, "") for c in columns)) for name, row in rows.items()]
        note = f"time relative to {baseline(run)}'s F.linear: smaller is better"
        yield Table(f"Linear, k={k}, n={n}", ("", *columns), lines, 1, note)


def _memory(run: Run) -> Table:
    rows = []
    for case in of_group(run, "memory"):
        line = mine(case)
        cells = [size(line[f"{part}_bytes"]) for part in ("result", "temporary", "tensor")]
        share = f"{line['tensor_bytes'] / max(line['counted_bytes'], 1):.4f}"
        sizes = " x ".join(map(str, case["shape"]))
        mark = "*" * (line.get("backend") == "reference")
        rows.append((case["op"], case["format"] + mark, sizes, *cells, share))
    header = ("op", "format", "shape", "result", "temporary", "read and written", "of counted")
    note = (
        "temporary: the most that torch's allocator held beside the result; the last column: bytes "
        "of all tensors of the call over those counted from the format"
    )
    return Table("Memory", header, rows, 3, note)


def _model(run: Run) -> Table:
    rows = [
        (
            line["name"],
            f"{1e3 * line['seconds']:.0f} ms",
            cell(line, "relative", 3),
            cell(line, "cosine", 4),
        )
        for case in of_group(run, "model")
        for line in case["contestants"]
    ]
    titles = [f"{c['sentences']} sentences x {c['tokens']} tokens" for c in of_group(run, "model")]
    header = ("", "time", "relative", "mean cosine to fp32")
    return Table(f"all-MiniLM-L6-v2, {''.join(titles)}", header, rows)


def prediction(run: Run) -> Table:
    """The least time that a linear layer could take, relative to the float layer."""
    least = floors(run)
    columns = list(dict.fromkeys(m for row in least.values() for m in row))
    rows = [
        (name, *(f"{row[m]:.3f}" if m in row else "" for m in columns))
        for name, row in least.items()
    ]
    return Table("Predicted", ("", *(f"m={m}" for m in columns)), rows)


def left_out(run: Run) -> list[str]:
    """Who did not race, and why, each said once."""
    skipped = [each for case in run["cases"] for each in case.get("skipped", ())]
    return list(dict.fromkeys(f"{each['name']}: {each['reason']}" for each in skipped))


def conditions(run: Run) -> list[tuple[str, str]]:
    """What a reader needs to judge the figures."""
    machine, versions = run["hardware"], run["versions"]
    names = ("python", "blockscale", "torch", "torchao", "onnxruntime", "triton")
    processor = f"{machine['processor']}, {machine['cores']} cores, {machine['threads']} threads"
    kernels = f"{instruction_set(machine)} (torch: {machine['vectors']})"
    gpus = "; ".join(device["name"] for device in machine["devices"])
    when = f"{run['when']}, {run.get('seconds', 0):.0f} s"
    if not run["complete"]:
        when += f", stopped after {len(run['cases'])} cases"
    return [
        *([("device", gpus)] if kind(run) != "cpu" else [("processor", processor)]),
        ("last-level cache", f"{machine['cache_bytes'] / 2**20:.0f} MiB"),
        ("kernels", "Triton" if kind(run) != "cpu" else kernels),
        ("versions", ", ".join(f"{name} {versions[name]}" for name in names)),
        ("commit", run["commit"]),
        ("when", when),
        ("allocator", " ".join(f"{k}={v}" for k, v in run["environment"].items())),
    ]


# What a linear layer takes at least: its weight's bytes over bandwidth, operations over rate.


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
    copy_rate, rate = bandwidth(run), float_rate(run)
    cases = of_group(run, "linear")
    if not (copy_rate and rate):
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
                least = max(line["bytes"] / copy_rate, case["operations"] / rate / faster)
                relative.setdefault(line["name"], {})[case["m"]] = least / float_layer
    return relative
