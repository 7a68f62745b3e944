"""`blockscale bench`: how fast quantizing, linear layers and a whole model are on this machine."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as Grid

from blockscale.bench import environment, results
from blockscale.bench.case import Case
from blockscale.bench.run import Watcher, run
from blockscale.bench.settings import Settings, sizes
from blockscale.bench.tune import tune
from blockscale.report.speed.reading import Run
from blockscale.report.speed.tables import LEGEND, conditions, tables

_SECONDS = {True: 60.0, False: 480.0}  # of a quick run, of a full one


def bench(  # noqa: PLR0913 - one argument an option
    quick: Annotated[
        bool, typer.Option("--quick", help="About a minute, with fewer cases.")
    ] = False,
    only: Annotated[
        str, typer.Option(metavar="PATTERN", help="Only cases with this in their names, or a glob.")
    ] = "",
    formats: Annotated[
        str, typer.Option(metavar="A,B", help="These names or spellings in place of all formats.")
    ] = "",
    peers: Annotated[
        bool, typer.Option("--peers/--no-peers", help="Measure other libraries beside ours.")
    ] = True,
    compiled: Annotated[
        bool, typer.Option("--compile", help="All peers under torch.compile too: minutes more.")
    ] = False,
    device: Annotated[str, typer.Option(help="Where to measure.")] = "cpu",
    tuned: Annotated[
        bool,
        typer.Option("--tune", help="First measure this GPU's launch choices, and keep them."),
    ] = False,
    seconds: Annotated[
        float, typer.Option(help="Begin no case after these: 0 means 60 if quick, else 480.")
    ] = 0.0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a run that stopped.")
    ] = False,
    as_json: Annotated[
        str,
        typer.Option("--json", metavar="PATH", help="The file to write; - for standard output."),
    ] = "",
) -> None:
    """Measure speed: primitives, linear layers and a model, as ratios to this machine's ceilings.

    Ctrl-C stops and keeps what was measured; --resume goes on.
    """
    if environment.needed() is not None:
        print(f"blockscale: {environment.WHY}", file=sys.stderr)
        environment.start_again()
    wanted = tuple(each for each in formats.split(",") if each)
    limit, shapes = seconds or _SECONDS[quick], sizes(device, quick)
    settings = Settings(device, quick, peers, compiled, only, wanted, limit, shapes)
    if tuned:
        tune(settings, Console(stderr=True).print)
    path, goes_on = _place(settings, as_json, resume)
    _show(_watched(settings, path, goes_on), path, as_json == "-")


def _watched(settings: Settings, path: Path, goes_on: bool) -> Run:
    """The run's data, with its progress shown."""
    with _Lines() as watcher:
        try:
            return run(settings, path, goes_on, watcher).data
        except KeyboardInterrupt:
            if path.exists():
                watcher.say(f"what was measured is kept in {path}; --resume goes on")
            raise


def _place(settings: Settings, asked: str, resume: bool) -> tuple[Path, bool]:
    """The run's file, and whether it is gone on with."""
    if asked not in ("", "-"):
        path = Path(asked)
        return path, resume and path.exists()
    old = results.unfinished(settings) if resume else None
    return old or results.new_path(settings), old is not None


def _show(data: Run, path: Path, as_json: bool) -> None:
    if as_json:
        print(json.dumps(data, indent=1))
        return
    console = Console()
    for name, text in conditions(data):
        console.print(f"{name}: {text}", highlight=False, markup=False, soft_wrap=True)
    for table in tables(data):
        grid = Grid(title=table.title, caption=table.note or None, title_justify="left")
        for i, column in enumerate(table.header):
            grid.add_column(column, justify="left" if i < table.left else "right")
        for row in table.rows:
            grid.add_row(*row)
        console.print(grid)
    console.print(f"{LEGEND}\nwritten: {path}", highlight=False, markup=False, soft_wrap=True)


class _Lines(Watcher):
    """A bar on a terminal, a line a group elsewhere; always on stderr."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(
            *columns,
            TextColumn("{task.description}"),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("")
        self._group = ""

    def __enter__(self) -> "_Lines":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def start(self, total: int, done: int) -> None:
        self._bar.update(self._task, total=total, completed=done)
        if done:
            self.say(f"going on: {done} of {total} cases were measured earlier")

    def begin(self, case: Case) -> None:
        self._bar.update(self._task, description=case.name)
        if case.group != self._group and not self._console.is_terminal:
            self.say(f"measuring {case.group}")
        self._group = case.group

    def end(self, case: Case) -> None:
        del case
        self._bar.advance(self._task)

    def say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, highlight=False, markup=False)
