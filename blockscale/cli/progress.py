# SPDX-License-Identifier: BSD-3-Clause
"""A progress bar on a terminal, a line now and then elsewhere; always on stderr."""

import sys
import time
from pathlib import Path
from typing import Self

from rich import progress as bars
from rich.console import Console

from blockscale.core.recipe import Recipe
from blockscale.core.untrusted import shown, shown_lines
from blockscale.core.work import Closing, Progress
from blockscale.files.whole import check_place, written_whole
from blockscale.reporting.table import size

# Files that commands write beside what they print: checked before any work, then whole.


def check_outputs(out: Path | None, recipe: Path | None) -> None:
    """Raise ValueError for places where no file can be."""
    for path, example in ((out, "search.json"), (recipe, "recipe.json")):
        if path is not None:
            check_place(path, example)


def write_recipe(path: Path | None, recipe: Recipe) -> None:
    """Write a recipe as `blockscale quantize --recipe` reads it; None writes nothing."""
    if path is not None:
        with written_whole(path) as temporary:
            temporary.write_text(recipe.to_json() + "\n")


_SECONDS = 10.0  # between lines where there is no terminal


class Bar(Progress, Closing):
    """Shows what is done of how much, how fast, and for how long yet. A context manager."""

    def __init__(self, quiet: bool = False):
        """quiet: show no progress, but still what `say` is told."""
        self._console = Console(stderr=True)
        self._quiet, self._lively = quiet, self._console.is_terminal and not quiet
        self._bar = bars.Progress(
            bars.BarColumn(), bars.TaskProgressColumn(), bars.DownloadColumn(),
            bars.TransferSpeedColumn(), bars.TimeRemainingColumn(),
            bars.TextColumn("{task.description}", markup=False),
            console=self._console, transient=True, disable=not self._lively,
        )  # fmt: skip
        self._task: bars.TaskID | None = None
        self._total = self._count = self._before = 0
        self._began = self._last_line = time.monotonic()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def close(self) -> None:
        """Leave the bar as it stands."""
        self._bar.stop()

    @property
    def speed(self) -> float:
        """Bytes of source tensors a second, of this run."""
        return (self._count - self._before) / max(time.monotonic() - self._began, 1e-9)

    def start(self, total: int | None, done: int = 0) -> None:
        """Show the bar."""
        self._total, self._count, self._before = total or 0, done, done
        self._began = self._last_line = time.monotonic()
        self._task = self._bar.add_task("", total=total, completed=done)
        if done:
            self.say(
                f"going on: {size(done)} of {size(self._total)} were finished by an earlier run"
            )

    def advance(self, name: str = "", amount: int = 1) -> None:
        """Move it on by `amount` bytes."""
        self._count += amount
        if self._lively and self._task is not None:
            self._bar.update(self._task, advance=amount, description=shown(name))
        elif not self._quiet and time.monotonic() - self._last_line >= _SECONDS:
            self._last_line = time.monotonic()
            share = 100 * self._count / max(self._total, 1)
            self.say(f"{share:.0f}% of {size(self._total)}, {size(self.speed)}/s")

    def say(self, text: str) -> None:
        """One line above the bar."""
        text = shown_lines(text)
        if self._lively:
            self._bar.print(text, soft_wrap=True, highlight=False, markup=False)
        else:
            print(text, file=sys.stderr)
