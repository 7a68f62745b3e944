"""What `blockscale bench` shows beside a run: an earlier run, another checkout, plots."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Grid

from blockscale.bench.against import changes, regressions, verdict
from blockscale.bench.beside.race import table as race_table
from blockscale.files.whole import check_place, written_whole
from blockscale.report.charts import bars
from blockscale.report.speed.page import images
from blockscale.report.table import Table

_BARS = 60  # in one plot: more cannot be read


def as_grid(table: Table) -> Grid:
    """A table for a terminal."""
    grid = Grid(title=table.title, caption=table.note or None, title_justify="left")
    for i, column in enumerate(table.header):
        grid.add_column(column, justify="left" if i < table.left else "right")
    for row in table.rows:
        grid.add_row(*row)
    return grid


def follow_up(
    data: dict[str, Any], plot: Path | None, earlier: dict[str, Any] | None, tolerance: float
) -> None:
    """What was asked for beside the run: plots, and a comparison with an earlier one."""
    if plot is not None:
        write_plots(data, plot)
    if earlier is not None:
        compare_with(earlier, data, tolerance)


def compare_with(earlier: dict[str, Any], data: dict[str, Any], tolerance: float) -> None:
    """Show what changed, on standard error. Raises ValueError if something is too slow."""
    found = changes(earlier, data)
    Console(stderr=True).print(as_grid(regressions(found, tolerance)))
    if said := verdict(found, tolerance):
        raise ValueError(said)


def show_race(found: Mapping[str, Any], as_json: str, plot: Path | None) -> None:
    """A race of two checkouts: as a table, as JSON, or in a file; and as a plot."""
    text = json.dumps(found, indent=1)
    if as_json == "-":
        print(text)
    else:
        Console().print(as_grid(race_table(found)))
    if as_json not in ("", "-"):
        _write(check_place(as_json, "race.json"), text + "\n")
    if plot is not None:
        pairs = sorted(found["pairs"], key=lambda pair: -pair["ratio"])[:_BARS]
        rows = {f"{pair['case']} {pair['by']}"[-40:]: {"ratio": pair["ratio"]} for pair in pairs}
        svg = bars("Time here over time beside: shorter is better", rows, ("ratio",))
        _write(_folder(plot) / "beside.svg", svg)


def write_plots(data: dict[str, Any], folder: Path) -> None:
    """The plots of a run, as SVG. Raises ValueError if it has nothing that is drawn."""
    drawn = images(data, "bench")
    if not drawn:
        raise ValueError("nothing to plot: primitives and linear layers are, and none was measured")
    for name, svg in drawn.items():
        _write(_folder(folder) / Path(name).name, svg)


def _folder(folder: Path) -> Path:
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: name the folder that plots go to")
    folder.mkdir(exist_ok=True)
    return folder


def _write(path: Path, text: str) -> None:
    with written_whole(path) as temporary:
        temporary.write_text(text)
