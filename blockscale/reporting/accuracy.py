# SPDX-License-Identifier: BSD-3-Clause
"""The page on a language model's accuracy: loss added against bits, ours beside others'."""

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from blockscale.reporting.charts import scatter

Row = Mapping[str, Any]
PART = "held"  # what tables and plots show; "held2" checks that nothing was tuned to it
MISSING = "–"
PLOTTED = {"Weights only": "weights", "Weights and inputs": "inputs"}  # the names of their plots


def pages(
    notes: str,
    run: Mapping[str, Any],
    name: str = "accuracy",
    earlier: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """{path below docs: content}: the page, from its notes and a run that was gathered, and plots.

    notes: text with `{tables}`, `{plots}` and `{machines}` where they belong.
    earlier: a run on other models, for `{earlier}` and `{earlier_machines}`
    """
    rows: Mapping[str, Row] = run["rows"]
    texts, links = {}, []
    for title, members in _sorts(rows):
        part = PLOTTED.get(title)
        if part:
            path = f"images/{name}-{part}.svg"
            texts[path] = scatter(
                f"Loss added (nats a token) by bits a weight, {title.lower()}", _points(members),
                "bits a weight, with scales",
            )  # fmt: skip
            links.append(f"![Loss added by bits a weight, {title.lower()}]({path})")
    text = notes.replace("{tables}", "\n".join(_tables(rows))).replace(
        "{plots}", "\n\n".join(links)
    )
    text = text.replace("{machines}", "\n".join(_machines(run)))
    if earlier is not None:
        text = text.replace("{earlier}", "\n".join(_tables(earlier["rows"], "####")))
        text = text.replace("{earlier_machines}", "\n".join(_machines(earlier)))
    return {f"{name}.md": text, **texts}


def _sorts(rows: Mapping[str, Row]) -> Iterator[tuple[str, list[Row]]]:
    """What was quantized, and the rows of it, where there are some."""
    for title, cache, members in (
        ("Weights only", False, False),
        ("Weights and inputs", False, True),
        ("Keys and values", True, False),
        ("Weights, inputs, keys and values", True, True),
    ):
        some = [
            row for row in rows.values()
            if (bool(row.get("cache")), bool(row["input"])) == (cache, members)
        ]  # fmt: skip
        if some:
            yield title, some


def method(row: Row) -> str:
    """Who and how, as one curve of the plot."""
    return " ".join(filter(None, [row["by"], row["transform"], row["algorithm"]]))


def mean(row: Row, what: str, part: str = PART) -> float:
    """Over the seeds."""
    return statistics.fmean(seed[part][what] for seed in row["seeds"].values() if part in seed)


def _points(rows: list[Row]) -> dict[str, list[tuple[float, float]]]:
    """{method: its points}, ours first."""
    points: dict[str, list[tuple[float, float]]] = {}
    for row in sorted(rows, key=lambda r: (r["by"] != "blockscale", method(r))):
        points.setdefault(method(row), []).append((row["bits"], mean(row, "added")))
    return points


def _tables(rows: Mapping[str, Row], level: str = "###") -> Iterator[str]:
    """A table of each sort; fewest bits first, then the best."""
    for title, some in _sorts(rows):
        more = [part for part in ("input", "cache") if some[0].get(part)]
        columns = "by | loss added | lowest … highest | other text | agreement | seconds |"
        yield " | ".join([f"{level} {title}\n\n| bits | format", *more, columns])
        yield "|--:|---|" + "---|" * len(more) + "---|--:|---|--:|--:|---|"
        for row in sorted(some, key=lambda r: (round(r["bits"], 2), mean(r, "added"))):
            yield _line(row)
        yield ""


def _line(row: Row) -> str:
    seeds = row["seeds"].values()
    losses = [seed[PART]["added"] for seed in seeds]
    other = any("held2" in seed for seed in seeds)
    formats = [f"`{row[part]}`" for part in ("weight", "input", "cache") if row.get(part)]
    cells = [
        f"{row['bits']:.2f}", *formats, method(row), f"{statistics.fmean(losses):.4f}",
        f"{min(losses):.4f} … {max(losses):.4f} ({len(losses)})",
        f"{mean(row, 'added', 'held2'):.4f}" if other else MISSING,
        f"{100 * mean(row, 'agreement'):.2f} %", _seconds(row),
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def _seconds(row: Row) -> str:
    """The median on each kind of device."""
    on: dict[str, list[float]] = {}
    for seed in row["seeds"].values():
        for device, seconds in seed["seconds"].items():
            on.setdefault(device, []).append(seconds)
    return ", ".join(
        f"{device} {statistics.median(each):.1f}" for device, each in sorted(on.items())
    )


def _machines(run: Mapping[str, Any]) -> Iterator[str]:
    """What it was measured on, a line each."""
    for about in run["machines"]:
        hardware = about["hardware"]
        gpus = ", ".join(each["name"] for each in hardware["devices"])
        versions = ", ".join(
            f"{name} {version}" for name, version in about["versions"].items()
            if version != "not installed"
        )  # fmt: skip
        where = f"{hardware['processor']}, {about['threads']} threads" + (
            f", {gpus}" if gpus else ""
        )
        yield f"* {where}; commit `{about['commit'][:12]}`; {versions}"
