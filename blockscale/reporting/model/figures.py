# SPDX-License-Identifier: BSD-3-Clause
"""Figures for papers, with matplotlib: what a report shows, as PDF, SVG and PNG of one column.

The same data give the same bytes on one machine: no dates, and ids of SVG from a fixed salt.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockscale.core.parse import display_name
from blockscale.core.untrusted import LARGEST, TEXT, json_object, quote, read_json, shown
from blockscale.files.metadata import FileError
from blockscale.files.whole import written_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# A search's result, read from its file: points to draw and errors of candidates, layer by layer.
#
# The file is what `bs.search(…).save(path)` writes, and may be anybody's: every field is checked.

LAYERS = 5_000  # layers of a search that a page lists, and what it lists of each
CANDIDATES = 64
POINTS = 2_000
_SEARCH_LONGEST = 20_000  # characters of a recipe
_ABOUT = ("hardware", "versions")


def is_search(path: str | Path) -> bool:
    """Whether a path is taken for a search's file: by its name, as models have other names."""
    return Path(path).suffix == ".json"


def read_search(path: str | Path) -> dict[str, Any]:
    """A search as plain data, points by bits. Raises FileError for a file that is none."""
    data = json_object(read_json(path, most=LARGEST), path)
    points, layers = data.get("points"), data.get("layers")
    if not isinstance(points, list) or not isinstance(layers, list):
        raise FileError(
            f"{path} has no points and layers: expected a file that bs.search(…).save wrote"
        )
    uniform = data.get("uniform", [])
    if not isinstance(uniform, list):
        raise FileError(f"{path}: its uniform points are not a list")
    every = [("searched", each) for each in points] + [("uniform", each) for each in uniform]
    all_points = [_point(each, kind, f"{path}: a {kind} point") for kind, each in every[:POINTS]]
    measured_points = [point for point in all_points if point["quality"] is not None]
    quality = data.get("quality")
    return {
        "file": shown(path, TEXT),
        "measure": shown(quality) if isinstance(quality, str) else "quality",
        "points": sorted(measured_points, key=lambda point: point["bits"]),
        "chosen": _choice(data.get("chosen"), path),
        "unmeasured": len(all_points) - len(measured_points),
        "layers": [_layer(each, f"{path}: layer {i}") for i, each in enumerate(layers[:LAYERS])],
        "unlisted": max(len(layers) - LAYERS, 0),
        "command": shown(data.get("command", ""), TEXT),
        **{key: _plain(data[key]) for key in _ABOUT if isinstance(data.get(key), dict)},
    }


def _point(value: Any, kind: str, what: str) -> dict[str, Any]:
    """One recipe: bits, and the quality that was measured with it, or None."""
    data = json_object(value, what)
    quality = data.get("quality")
    recipe = data.get("recipe")
    text = recipe if isinstance(recipe, str) else json.dumps(recipe)
    return {
        "kind": kind,
        "bits": _number(data.get("bits"), f"{what}: bits"),
        "quality": None if quality is None else _number(quality, f"{what}: quality"),
        "recipe": shown(text, _SEARCH_LONGEST),
        "name": shown(data.get("name") or ""),
    }


def _choice(value: Any, path: str | Path) -> float | None:
    """The bits of the recipe that was asked for."""
    if value is None:
        return None
    what = f"{path}: its chosen point"
    return _number(json_object(value, what).get("bits"), f"{what}: bits")


def _layer(value: Any, what: str) -> dict[str, Any]:
    data = json_object(value, what)
    candidates = data.get("candidates")
    if not isinstance(candidates, list) or not isinstance(data.get("name"), str):
        raise FileError(f"{what} has no name and candidates")
    lines = []
    for i, each in enumerate(candidates[:CANDIDATES]):
        place = f"{what}, candidate {i}"
        line = json_object(each, place)
        sqnr = line.get("sqnr")
        lines.append({
            "format": shown(line.get("format", "")),
            "bits": _number(line.get("bits"), f"{place}: bits"),
            "sqnr": None if sqnr is None else _number(sqnr, f"{place}: sqnr"),
        })  # fmt: skip
    return {"name": shown(data["name"]), "candidates": lines}


def _number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise FileError(f"{what} is {quote(value)}, expected a number")
    return float(value)


def _plain(texts: Mapping[str, Any]) -> dict[str, str]:
    """Names and values that are one line each."""
    return {
        shown(key): shown(value, TEXT)
        for key, value in list(texts.items())[:100]
        if isinstance(value, str | int | float | None)
    }


KINDS = ("pdf", "svg", "png")
COLORS = ("#2563ab", "#c2570c", "#2e7d53", "#8d3fa8", "#a8871a", "#b3324f", "#1f8a96", "#6b5b4d")
OTHER = "#8b919c"
_ENGINE = "matplotlib"
_SETTINGS: Any = {
    "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "legend.fontsize": 7,
    "xtick.labelsize": 7, "ytick.labelsize": 7, "axes.linewidth": 0.6, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "grid.linewidth": 0.4, "grid.color": "#dddddd",
    "axes.axisbelow": True, "pdf.fonttype": 42, "svg.hashsalt": "blockscale",
    "svg.fonttype": "none",
    "text.parse_math": False,
    "figure.constrained_layout.use": True,
}  # fmt: skip
_WITHOUT_DATES: Mapping[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "ModDate": None},
    "svg": {"Date": None},
    "png": {},
}
_APART = 64  # values of a grid whose lines can be told apart
_LONGEST = 60  # characters of a name in a title
_SHORT = 20  # characters of names of which two stand side by side

Draw = Callable[["Axes"], None]


def check_folder(folder: str | Path) -> Path:
    """The folder that figures go to, made if there is none, before any work is done for them.

    Raises ValueError without matplotlib (the extra `report`) and for a path that is a file.
    """
    if find_spec(_ENGINE) is None:
        raise ValueError(
            f"figures need {_ENGINE}, which is not installed: pip install 'blockscale[report]'"
        )
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: name a folder for the figures")
    if not folder.parent.is_dir():
        raise ValueError(f"{folder.parent} is not a directory: create it first")
    return folder


def draw(data: Mapping[str, Any], folder: str | Path) -> list[Path]:
    """Every figure that there is data for, in each of KINDS: the paths that were written.

    data: what `describe` found. Raises ValueError as `check_folder`, and for data without any.
    """
    folder = check_folder(folder)
    figures = list(_figures(data))
    if not figures:
        raise ValueError("nothing to draw: figures need quantized tensors, or a search with points")
    folder.mkdir(exist_ok=True)
    return [path for name, draw_on in figures for path in save(draw_on, folder, name)]


def save(draw_on: Draw, folder: Path, name: str) -> list[Path]:
    """One figure in each of KINDS."""
    from matplotlib import rc_context

    paths = []
    with rc_context(_SETTINGS):
        figure = figure_of(draw_on)
        for kind in KINDS:
            path = folder / f"{name}.{kind}"
            with written_whole(path) as temporary:
                metadata = _WITHOUT_DATES[kind]
                figure.savefig(temporary, format=kind, dpi=300, metadata=metadata)
            paths.append(path)
    return paths


def figure_of(draw_on: Draw) -> "Figure":
    """A figure of 3.4 by 2.4 inches, with all its texts inside."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context(_SETTINGS):
        figure = Figure(figsize=(3.4, 2.4))
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        draw_on(axes)
        _fit(figure, axes)
    return figure


def texts_of(axes: "Axes") -> list[Any]:
    """The title, the labels, the legend and the annotations of a figure."""
    legend = axes.get_legend()
    titles = [axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts]
    return titles + (legend.get_texts() if legend is not None else [])


def _fit(figure: "Figure", axes: "Axes") -> None:
    """Make texts smaller until none reaches over the edge of the figure."""
    legend = axes.get_legend()
    beside = legend.get_texts() if legend is not None else []  # the axis and what each is drawn by
    for text in texts_of(axes):  # before the layout, which fails where nothing is left for the plot
        across = 0.72 if text in beside else 0.95
        room = across * (figure.bbox.height if text.get_rotation() else figure.bbox.width)
        box = text.get_window_extent(figure.canvas.get_renderer())  # type: ignore[attr-defined]
        long = box.height if text.get_rotation() else box.width
        text.set_fontsize(text.get_fontsize() * min(1.0, room / max(long, 1.0)))
    for _ in range(12):
        figure.draw_without_rendering()  # places them
        outside = [text for text in texts_of(axes) if not _inside(figure, text)]
        if not outside:
            return
        for text in outside:
            text.set_fontsize(0.85 * text.get_fontsize())


def _inside(figure: "Figure", text: Any) -> bool:
    box, whole = text.get_window_extent(), figure.bbox.padded(-2)
    across = whole.x0 <= box.x0 and box.x1 <= whole.x1
    return not text.get_text() or (across and whole.y0 <= box.y0 and box.y1 <= whole.y1)


def _figures(data: Mapping[str, Any]) -> Iterator[tuple[str, Draw]]:
    """(name of the file, what draws it)."""
    tensors = [line for line in data.get("tensors", ()) if "at_ends" in line]
    measured_lines = [line for line in tensors if line.get("sqnr") is not None]
    if measured_lines:
        yield "error", lambda axes: _dots(axes, tensors, "sqnr", "SQNR (dB)", 1.0)
    if tensors:
        key, label = (
            ("clipped", "weights clipped (%)")
            if measured_lines
            else ("at_ends", "codes at ends (%)")
        )
        yield "saturation", lambda axes: _dots(axes, tensors, key, label, 100.0)
    some = sorted(
        (line for line in tensors if "histogram" in line), key=lambda line: line.get("sqnr") or 0.0
    )
    places = {"best": -1, "median": len(some) // 2, "worst": 0} if measured_lines else {"first": 0}
    labels = {id(some[index]): (place, some[index]) for place, index in places.items() if some}
    for place, line in labels.values():
        grid = line["histogram"].get("grid", data["formats"].get(line["format"], []))
        yield f"histogram-{place}", partial(_histogram, line=line, grid=grid)
    if data.get("search", {}).get("points"):
        yield "pareto", lambda axes: _pareto(axes, data["search"])


def _dots(
    axes: "Axes", tensors: Sequence[Mapping[str, Any]], key: str, label: str, unit: float
) -> None:
    """A dot a tensor, by format, in the order of names."""
    formats = list(dict.fromkeys(line["format"] for line in tensors))
    for i, fmt in enumerate(formats):
        points = [
            (place, unit * line[key])
            for place, line in enumerate(tensors)
            if line["format"] == fmt and line.get(key) is not None
        ]
        color = COLORS[i] if i < len(COLORS) else OTHER
        if points:
            x, y = zip(*points, strict=True)
            axes.scatter(x, y, s=9, color=color, label=display_name(fmt)[-_LONGEST:])
    axes.set(xlabel="tensors by name", ylabel=label)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    short = max(len(display_name(fmt)) for fmt in formats) <= _SHORT
    axes.legend(
        frameon=False, handletextpad=0.1, columnspacing=0.8, ncols=2 if short else 1,
        loc="lower left", bbox_to_anchor=(0.0, 1.0),
    )  # fmt: skip


def _histogram(axes: "Axes", line: Mapping[str, Any], grid: Sequence[float]) -> None:
    """The source's weights, the codes, and lines where the format has values."""
    histogram = line["histogram"]
    low, high = histogram["from"], histogram["to"]
    counts = histogram.get("weights") or histogram.get("codes") or []
    total = max(line["bytes"] and sum(histogram.get("values") or histogram.get("codes")), 1)
    high_up = 1.0 if len(grid) <= _APART else 0.04  # many lines would hide what they are drawn over
    for value in grid:
        axes.axvline(value, ymax=high_up, color="#1b1e24", linewidth=0.3, alpha=0.5)
    if counts:
        step = (high - low) / len(counts)
        at = [low + (i + 0.5) * step for i in range(len(counts))]
        what = "weights" if "weights" in histogram else "codes"
        density = [n / total / step for n in counts]
        axes.bar(at, density, step, color="#b9bfca", label=what)
    if "values" in histogram and len(grid) > 1:
        widths = _widths(grid, low, high)
        density = [n / total / w for n, w in zip(histogram["values"], widths, strict=True)]
        thin = 0.35 * min(b - a for a, b in pairwise(grid))
        axes.bar(grid, density, thin, color=COLORS[1], label="codes", zorder=3)
    axes.set(xlabel="steps of the block", ylabel="density", xlim=(low, high))
    axes.set_title(f"{line['name'][-_LONGEST:]}\n{display_name(line['format'])[-_LONGEST:]}")
    axes.grid(False)
    axes.legend(frameon=False)


def _widths(grid: Sequence[float], low: float, high: float) -> list[float]:
    """How wide a span of numbers each value of a grid takes."""
    middles = [(a + b) / 2 for a, b in pairwise(grid)]
    return [b - a for a, b in zip([low, *middles], [*middles, high], strict=True)]


def _pareto(axes: "Axes", search: Mapping[str, Any]) -> None:
    """Quality by bits, with a line through what no other point beats in both."""
    front: list[tuple[float, float]] = []
    for point in sorted(search["points"], key=lambda each: (each["bits"], -each["quality"])):
        if not front or point["quality"] > front[-1][1]:
            front.append((point["bits"], point["quality"]))
    x, y = zip(*front, strict=True)
    axes.plot(x, y, linewidth=0.8, color=OTHER)
    every = [point["bits"] for point in search["points"]]
    for kind, color in (("searched", COLORS[1]), ("uniform", COLORS[0])):
        some = [point for point in search["points"] if point["kind"] == kind]
        bits, quality = ([point[key] for point in some] for key in ("bits", "quality"))
        axes.scatter(bits, quality, s=9, color=color, label=kind)
        for point in some:
            place = (point["bits"], point["quality"])
            text = point["name"][:20]
            label_on_left = point["bits"] > (min(every) + max(every)) / 2  # the text is inside then
            axes.annotate(
                text, place, (-3 if label_on_left else 3, -7), textcoords="offset points", size=5,
                ha="right" if label_on_left else "left",
            )  # fmt: skip
    axes.set(xlabel="bits per weight", ylabel=search["measure"])
    axes.legend(frameon=False, loc="lower right")
