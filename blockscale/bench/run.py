# SPDX-License-Identifier: BSD-3-Clause
"""One run: every case in turn, written as it is measured."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import blockscale as bs
from blockscale.bench import targets
from blockscale.bench.groups import ceilings, linear, memory, model, overhead, primitives
from blockscale.bench.machine import every_core
from blockscale.bench.peers import error_line
from blockscale.bench.requests import Case, Contestant, Skipped
from blockscale.bench.results import Results
from blockscale.bench.settings import Settings
from blockscale.bench.timing import Racer, Timing, clock, race

# In the order in which they are measured.
GROUPS = (ceilings, overhead, linear, primitives, memory, model)
_TIMED = 0.6  # of the run's time is measuring; the rest makes data and warms up
_LONGEST = {True: 0.8, False: 2.0}  # seconds for a weight of 1: quick, full


class Watcher:
    """Hears what a run does. This one says nothing."""

    def start(self, total: int, done: int) -> None:
        """`total` cases, of which `done` were measured earlier."""

    def begin(self, case: Case) -> None:
        """A case begins."""

    def end(self, case: Case) -> None:
        """It is measured and written."""

    def say(self, text: str) -> None:
        """Something that a user should know."""


def every_case(settings: Settings) -> Iterator[Case]:
    """What the settings ask for, ceilings first."""
    for group in GROUPS:
        yield from (case for case in group.cases(settings) if settings.wants(case.name))


def run(settings: Settings, path: Path, resume: bool, watcher: Watcher) -> Results:
    """Measure into `path`. Raises ValueError if nothing is to be measured or it cannot go on.

    Stopped at any moment, the file holds every case that was finished.
    """
    clock(settings.device)  # says early if there is none
    with every_core():
        results = (Results.resume if resume else Results.start)(path, settings)
        cases = list(every_case(settings))
        if not cases:
            raise ValueError(
                f"no case matches {settings.only!r}: give a part of a case's name, or a glob "
                "such as 'quantize*'; without it all cases run"
            )
        todo = [case for case in cases if case.name not in results.case_names]
        watcher.start(len(cases), len(cases) - len(todo))
        _measure_all(todo, settings, results, watcher)
    return results


def _measure_all(todo: list[Case], settings: Settings, results: Results, watcher: Watcher) -> None:
    began = time.monotonic()
    heard: set[str] = set()
    for index, case in enumerate(todo):
        start = time.monotonic()
        rest = settings.seconds - (start - began)
        if rest < 0:
            count = len(todo) - index
            watcher.say(f"{settings.seconds:g} seconds are over; {count} cases are not measured")
            return
        # Anew for each case: making data and compiling may take more than they should.
        unit = _TIMED * rest / max(sum(each.weight for each in todo[index:]), 1e-9)
        unit = min(unit, _LONGEST[settings.quick])
        watcher.begin(case)
        record = measure(case, settings, unit * case.weight)
        for skipped in record["skipped"]:
            text = f"left out: {skipped['name']}: {skipped['reason']}"
            if text not in heard:
                heard.add(text)
                watcher.say(text)
        results.add(record, time.monotonic() - start)
        watcher.end(case)
    results.finish()


def measure(case: Case, settings: Settings, seconds: float) -> dict[str, Any]:
    """The case as plain data: who raced, how fast, and who did not and why."""
    entries = list(case.contestants())
    skipped = [each for each in entries if isinstance(each, Skipped)]
    share = seconds / max(len(entries) - len(skipped), 1)
    backends: dict[str, str] = {}
    racers: list[Racer] = []
    contestants: list[Contestant] = []
    for each in entries:
        if isinstance(each, Skipped):
            continue
        try:
            if each.probe:
                backends[each.name] = backend(each, settings.device)
            racers.append(Racer(each, share, clock(settings.device, case.host), case.cold))
            contestants.append(each)
        except Exception as error:
            if each.kind != "peer":
                raise
            skipped.append(Skipped(each.name, error_line(error)))
    times = race(racers)
    return {
        "name": case.name,
        "group": case.group,
        **case.about,
        "contestants": [_line(case, each, times, backends) for each in contestants],
        "skipped": [vars(each) for each in skipped],
    }


def _line(
    case: Case, contestant: Contestant, times: dict[str, Timing], backends: dict[str, str]
) -> dict[str, Any]:
    timing = times[contestant.name]
    figures = case.figures(contestant, timing, times) | dict(contestant.facts)
    line: dict[str, Any] = {
        "name": contestant.name,
        "kind": contestant.kind,
        "note": contestant.note,
        "backend": backends.get(contestant.name),
        "bytes": contestant.bytes,
        "seconds": timing.median,
        "least_seconds": timing.minimum,
        "rounds": timing.rounds,
        "calls": timing.calls,
        **figures,
        "targets": {name: dict([target]) for name, target in contestant.targets.items()},
        "met": targets.are_met(contestant.targets, figures),
    }
    return {key: value for key, value in line.items() if value not in (None, "", {})}


def backend(contestant: Contestant, device: str) -> str:
    """Who runs it: the device's kernels, or the reference where these refuse."""
    kernels = device.partition(":")[0]
    try:
        with bs.use(kernels):
            contestant.call()
    except RuntimeError:
        return "reference"
    return kernels
