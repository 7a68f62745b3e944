# SPDX-License-Identifier: BSD-3-Clause
"""How a campaign goes, on a terminal, and its figures."""

import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from attack.campaign import Campaign
from attack.part import Part

_console = Console()


def _table(campaign: Campaign, parts: Sequence[Part], title: str) -> Table:
    table = Table("part", "attacked", "wanted", "failures", title=title, title_justify="left")
    for part in parts:
        own = campaign.of(part)
        failed = sum(each["count"] for each in own["failures"].values())
        counts = ", ".join(f"{n:,} {name}" for name, n in own["counts"].items())
        style = "red" if failed else "green"
        table.add_row(part.name, counts, f"{part.wanted:,} {part.unit}", f"[{style}]{failed:,}")
    return table


@contextmanager
def progress(
    campaign: Campaign, parts: Sequence[Part], seconds: float
) -> Iterator[Callable[[Part], None]]:
    """A table that stays up to date; what is given is to be called after each turn."""
    end = time.monotonic() + seconds

    def drawn() -> Table:
        left = max(end - time.monotonic(), 0) / 60
        return _table(campaign, parts, f"attack, seed {campaign.seed}: {left:.1f} minutes left")

    with Live(drawn(), console=_console, auto_refresh=False, transient=True) as live:
        yield lambda _: live.update(drawn(), refresh=True)


def summary(campaign: Campaign, parts: Sequence[Part], missing: dict[str, str]) -> int:
    """Print what was found, each kind with the command that repeats it. How many kinds there are."""
    able = [part for part in parts if part.name not in missing]
    _console.print(_table(campaign, able, f"attack, seed {campaign.seed}"))
    for name, reason in missing.items():
        _console.print(f"{name}: not run: {reason}", markup=False)
    kinds = 0
    for part in able:
        for kind, own in campaign.of(part)["failures"].items():
            kinds += 1
            command = f"python -m attack --seed {campaign.seed} --only {part.name} --case {own['cases'][0]}"
            _console.print(
                f"\n[red]{escape(part.name)}: {escape(printable(kind))}[/] ({own['count']}×)"
            )
            _console.print(printable(own["text"][-600:]), markup=False, highlight=False)
            _console.print(f"    {command}", markup=False, highlight=False, soft_wrap=True)
    return kinds


def printable(text: str) -> str:
    """Without anything that a terminal would act on."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def write_figures(campaign: Campaign, missing: dict[str, str], path: Path) -> None:
    """The figures of docs/reliability.md as JSON; parts that were not attacked keep theirs, and the
    commit that these are of."""
    before = json.loads(path.read_text()) if path.exists() else {"parts": {}}
    known = campaign.state["parts"]
    parts: dict[str, Any] = {
        name: {"version": before["version"]} | part
        for name, part in before["parts"].items()
        if name not in known
    }
    for name, own in known.items():
        kinds = {printable(kind): each["count"] for kind, each in own["failures"].items()}
        parts[name] = {"version": campaign.state["version"], "failures": kinds}
        parts[name] |= {k: own[k] for k in ("unit", "wanted", "counts")}
        parts[name]["minutes"] = round(own["seconds"] / 60, 1)
    about = {
        "machine": platform.machine(),
        "processors": os.cpu_count(),
        "python": platform.python_version(),
    }
    figures = {"version": campaign.state["version"], "seed": campaign.seed} | about
    figures |= {"parts": dict(sorted(parts.items())), "missing": missing}
    path.write_text(json.dumps(figures, indent=2) + "\n")
