# SPDX-License-Identifier: BSD-3-Clause
"""`blockscale bench`: how fast quantizing, linear layers and a whole model are on this machine."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from blockscale.bench import environment, results
from blockscale.bench.against import TOLERANCE, check_tolerance
from blockscale.bench.case import Case
from blockscale.bench.race import race
from blockscale.bench.run import Watcher, run
from blockscale.bench.settings import Settings, sizes
from blockscale.bench.tune import tune
from blockscale.cli.comparing import as_grid, follow_up, show_race
from blockscale.reporting.speed import LEGEND, Run, conditions, tables

_SECONDS = {True: 60.0, False: 480.0}  # of a quick run, of a full one


def bench(  # noqa: PLR0913 - one argument an option
    quick: Annotated[bool, typer.Option("--quick", help="Fewer cases: about a minute.")] = False,
    only: Annotated[
        str, typer.Option(metavar="PATTERN", help="Only cases whose names contain this, or a glob.")
    ] = "",
    formats: Annotated[
        str, typer.Option(metavar="A,B", help="Only these formats, by name or spelling.")
    ] = "",
    peers: Annotated[
        bool, typer.Option("--peers/--no-peers", help="Measure other libraries too.")
    ] = True,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Other libraries under torch.compile, too.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    tuned: Annotated[
        bool,
        typer.Option("--tune", help="First tune the kernels for this machine."),
    ] = False,
    seconds: Annotated[float, typer.Option(help="Time limit; 0: 480, 60 if quick.")] = 0.0,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    as_json: Annotated[
        str,
        typer.Option("--json", metavar="PATH", help="The file to write; - for standard output."),
    ] = "",
    against: Annotated[
        Path | None,
        typer.Option(metavar="RUN.json", help="Fail if slower than this earlier run."),
    ] = None,
    tolerance: Annotated[float, typer.Option(help="Allowed time ratio.")] = TOLERANCE,
    beside: Annotated[
        Path | None,
        typer.Option(metavar="CHECKOUT", help="Compare with another checkout, in turns."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A folder for plots (SVG).")
    ] = None,
) -> None:
    """Measure speed and memory of primitives, layers and a model.

    Results are ratios to what the hardware can reach. Ctrl-C stops and keeps what was measured;
    --resume continues.
    """
    if environment.needed() is not None:
        print(f"blockscale: {environment.WHY}", file=sys.stderr)
        environment.start_again()
    wanted = tuple(each for each in formats.split(",") if each)
    limit, shapes = seconds or _SECONDS[quick], sizes(device, quick)
    settings = Settings(device, quick, peers, compiled, only, wanted, limit, shapes)
    if beside is not None:
        return _race(beside, settings, as_json, plot)
    check_tolerance(tolerance)
    earlier = None if against is None else results.read(against)
    if tuned:
        tune(settings, Console(stderr=True).print)
    path, goes_on = _place(settings, as_json, resume)
    data = _watched(settings, path, goes_on)
    _show(data, path, as_json == "-")
    follow_up(data, plot, earlier, tolerance)
    return None


def _race(other: Path, settings: Settings, as_json: str, plot: Path | None) -> None:
    """This checkout beside another one, in place of a run."""
    with _Lines() as watcher:
        found = race(other, settings, watcher)
    show_race(found, as_json, plot)


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
        console.print(as_grid(table))
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
