# SPDX-License-Identifier: BSD-3-Clause
"""The report as one HTML file: what was described, style and scripts, and nothing from elsewhere.

Names are text to the browser: the template escapes what it shows, scripts write text nodes, and the
page's policy lets no script run but its own, by their hashes.
"""

import json
from base64 import b64encode
from collections.abc import Callable, Mapping
from hashlib import sha256
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from blockscale.core.parse import display_name
from blockscale.core.work import Progress
from blockscale.files.whole import check_place, written_whole
from blockscale.reporting.model.describe import describe as description
from blockscale.reporting.model.figures import check_folder, draw, is_search
from blockscale.reporting.table import size

SCRIPTS = ("draw.js", "charts.js", "layers.js", "app.js")
COLUMNS = {
    "name": ("tensor", "its name in the file"),
    "format": (
        "format",
        "its name or spelling (docs/formats.md), or the dtype as stored",
    ),
    "bytes": ("size", "bytes of codes, scales, zero points and what transforms the layer's input"),
    "bits": ("bits", "those bytes times 8 over elements"),
    "sqnr": ("SQNR", "dB: 10 log10 (sum a² / sum (a - b)²), a the source's weight, b the value"),
    "max_error": ("max error", "the largest |a - b|"),
    "clipped": ("clipped", "elements beyond the ends of their block's grid, as a share of all"),
    "at_ends": ("at ends", "elements whose code is the smallest or largest value of the grid"),
    "entropy": ("entropy", "bits a code tells on average: -sum p log2 p over the codes in use"),
}
_ENGINE = "jinja2"


def check_extra() -> None:
    """Raise ValueError unless what pages are made with is installed."""
    if find_spec(_ENGINE) is None:
        raise ValueError(
            f"pages need {_ENGINE}, which is not installed: pip install 'blockscale[report]'"
        )


def page(data: Mapping[str, Any]) -> str:
    """HTML of what `describe` found. Raises ValueError without jinja2 (the extra `report`)."""
    check_extra()
    from jinja2 import Environment

    style, scripts = _text("style.css"), [_text(name) for name in SCRIPTS]
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    filters: dict[str, Callable[..., str]] = {
        "size": size, "count": lambda n: f"{n:,}", "share": _share, "figure": _figure
    }  # fmt: skip
    environment.filters |= filters
    data = _by_names(data)
    parts = {key: data[key] for key in ("tensors", "formats", "search") if key in data}
    return environment.from_string(_text("page.html.jinja")).render(
        report=data,
        columns=COLUMNS,
        texts=("name", "format"),
        style=style,
        scripts=scripts,
        policy=_policy(style, scripts),
        # "</script>" and "<!--" in a string would end the element that it stands in
        data=json.dumps(parts, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        summary=_summary(data),
    )


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _by_names(data: Mapping[str, Any]) -> dict[str, Any]:
    """The same with the names of formats that have one; their spellings become a tooltip."""

    def with_names(line: Mapping[str, Any]) -> dict[str, Any]:
        return {**line, "format": display_name(line["format"]), "spelling": line["format"]}

    data = dict(data)
    if "tensors" in data:
        data["tensors"] = [with_names(line) for line in data["tensors"]]
        data["formats"] = {display_name(fmt): grid for fmt, grid in data["formats"].items()}
        totals = data["totals"]
        data["totals"] = totals | {"formats": [with_names(line) for line in totals["formats"]]}
    return data


def _summary(data: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(figure, what it is, what it is of): what a visitor wants to know first."""
    if "totals" not in data:
        return []
    totals = data["totals"]
    codes, every = totals["quantized"], max(totals["elements"], 1)
    tiles = [
        (size(totals["bytes"]), "tensors in all", f"{totals['tensors']:,} tensors"),
        (f"{totals['bits']:.2f}", "bits a weight", f"{totals['elements']:,} weights"),
        (_share(codes["elements"] / every), "of weights in codes", f"{codes['tensors']:,} tensors"),
        (f"{codes['bits']:.2f}", "bits a quantized weight", "scales included"),
    ]
    measured_lines = [line for line in data["tensors"] if line.get("sqnr") is not None]
    if measured_lines:
        worst = min(measured_lines, key=lambda line: line["sqnr"])
        middle = sorted(line["sqnr"] for line in measured_lines)[len(measured_lines) // 2]
        tiles.append((f"{middle:.1f} dB", "median SQNR", f"{len(measured_lines):,} tensors"))
        tiles.append((f"{worst['sqnr']:.1f} dB", "lowest SQNR", worst["name"]))
    return tiles


def _share(of_one: float) -> str:
    """A share in percent, never rounded to nothing or to all."""
    percent = 100 * of_one
    if 0 < percent < 0.01:
        return "< 0.01 %"
    if 99.9 < percent < 100:
        return f"{min(percent, 99.99):.2f} %"
    return f"{percent:.0f} %" if percent in (0, 100) else f"{percent:.1f} %"


def _policy(style: str, scripts: list[str]) -> str:
    """What the page may do: its own style and scripts, and no request at all."""

    def hashes(texts: list[str]) -> str:
        digests = (b64encode(sha256(text.encode()).digest()).decode() for text in texts)
        return " ".join(f"'sha256-{digest}'" for digest in digests)

    own = f"script-src {hashes(scripts)}; style-src {hashes([style])}"
    return f"default-src 'none'; {own}; img-src data:; base-uri 'none'; form-action 'none'"


def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


# `bs.report`: one HTML page, figures, or plain data about a quantized model or a search.


def report(  # noqa: PLR0913 - each is a thing to show
    path: str | Path,
    output: str | Path | None = None,
    *,
    source: str | Path | None = None,
    search: str | Path | None = None,
    evaluation: str | Path | None = None,
    figures: str | Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """What a quantized model or a search is, as plain data; also as a page and as figures.

    path: a file or directory that `bs.checkpoint` reads, or the .json file of a search
    output: the page to write: one HTML file that needs nothing else (the extra `report`)
    source: the float model with the same tensor names, for errors and saturation
    search: the .json file of a search to show beside a model
    evaluation: the .json file of `bs.evaluate(…).save` or `blockscale eval --out`, of this model
    figures: a folder for figures of papers, as PDF, SVG and PNG (matplotlib)
    progress: hears of the bytes that are looked at

    One layer at a time is in memory. Raises FileError for what cannot be read and ValueError for a
    place that cannot be written, before anything is written.
    """
    if output is not None:
        check_place(output, "report.html")
        check_extra()
    if figures is not None:
        check_folder(figures)
    alone = is_search(path)
    if alone and search is not None:
        raise ValueError(f"{path} and {search} are both searches: a report shows only one")
    data = description(
        None if alone else path,
        source=source,
        search=path if alone else search,
        evaluation=evaluation,
        progress=progress,
    )
    if output is not None:
        text = page(data)
        with written_whole(Path(output)) as temporary:
            temporary.write_text(text, encoding="utf-8")
    if figures is not None:
        draw(data, figures)
    return data
