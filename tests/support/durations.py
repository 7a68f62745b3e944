# SPDX-License-Identifier: BSD-3-Clause
"""What each test costs, written down with each run: `.pytest_cache/durations.jsonl`.

Processor time (user and system, of the test's process and of those that it started and waited for,
with the making and unmaking of its fixtures) says what a test costs on a busy machine, too. One
line for each test, `{"test", "processor", "wall", "outcome", "slow", "worker"}` in seconds, and one
for the collection of each process, whose "test" is "(collection)". As a program it sums them, or
records in tests/slow_costs.json what slow tests took, by which `.ci/run` chooses (schedule.py):

    python -m tests.support.durations [FILE] [--top 50] [--depth 1] [--before FILE]
    python -m tests.support.durations [FILE] --costs

A run of fast tests ends with the names of those above BUDGET, one of many also with the sum beside
GOAL: notes, no failures, as the same test takes half as long again beside another process.
"""

import argparse
import json
import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from time import monotonic, process_time  # tests put other clocks into the module
from typing import Any, TextIO

import pytest

from tests.support import forks, fresh
from tests.support.schedule import COSTS

FILE = Path(".pytest_cache") / "durations.jsonl"
COLLECTION = "(collection)"
BUDGET = 3.0  # seconds of processor time: the end of a run of fast tests names what takes more
GOAL = 600.0  # seconds of processor time of all fast tests and of what collects them
MANY = 1000  # tests of which the sum is said


def processor() -> float:
    """Seconds of processor time that this process, its ended children and the processes that
    tests are forked from have taken."""
    ended = os.times()
    children = ended.children_user + ended.children_system
    return process_time() + children + fresh.spent() + forks.spent()


class Durations:
    """A pytest plugin that measures and writes where a test runs; the first process joins what
    xdist's others wrote."""

    def __init__(self, file: Path):
        self._path = file
        self._own = file.with_name(f"{file.stem}-{os.getpid()}{file.suffix}")  # until the run ends
        self._file: TextIO | None = None
        self._line: dict[str, Any] = {}
        self._last = (processor(), monotonic())
        self._dear: list[tuple[float, str]] = []
        self._spent = {True: 0.0, False: 0.0}  # to collect them, and the tests themselves
        self._tests = 0

    def pytest_configure(self, config: pytest.Config) -> None:
        """Each process has a file of its own, so that runs at the same time do not mix."""
        output: dict[str, Any] = getattr(config, "workeroutput", {})
        self._worker = getattr(config, "workerinput", {}).get("workerid", "main")
        if not config.option.collectonly:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._own.open("w", encoding="utf-8")
            output["durations"] = str(self._own.resolve())

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Collecting is a cost of each process; the first one of xdist collects nothing."""
        if session.items:
            line = {"test": COLLECTION, "worker": self._worker, "tests": len(session.items)}
            self._write(line | dict(zip(("processor", "wall"), self._since(), strict=True)))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker of xdist has ended: its file becomes a part of this one."""
        theirs = getattr(node, "workeroutput", {}).get("durations")
        if theirs:
            for line in read(Path(theirs)):
                self._write(line)
            Path(theirs).unlink()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Any:
        """Setup, call and teardown have a report each: the time since the last one is its own, and
        the last one closes the line of the test."""
        report = yield
        taken = self._since()
        if report.when == "setup":
            self._line = {"test": report.nodeid, "processor": 0.0, "wall": 0.0}
        self._line["processor"] += taken[0]
        self._line["wall"] += taken[1]
        if report.when == "call" or report.outcome != "passed":
            self._line["outcome"] = report.outcome
        if report.when == "teardown":
            slow = item.get_closest_marker("slow") is not None
            self._write(self._line | {"worker": self._worker, "slow": slow})
        return report

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name the fast tests above the budget, and say what all took."""
        if "not slow" not in terminalreporter.config.option.markexpr:
            return
        if self._dear:
            terminalreporter.section(f"above {BUDGET:g} s of processor time (CONTRIBUTING, Tests)")
            terminalreporter.write("\n".join(dearest(self._dear)) + "\n")
        if self._tests >= MANY:
            collecting, running = self._spent[True], self._spent[False]
            terminalreporter.write(
                f"processor time of {self._tests} tests: {running:.0f} s, and {collecting:.0f} s "
                f"to collect them; the goal of all fast ones is {GOAL:.0f}\n"
            )

    def pytest_unconfigure(self) -> None:
        """The file takes its name; that of a run which is cut off keeps the process's number."""
        if self._file is not None:
            self._file.close()
            if self._worker == "main":
                self._own.replace(self._path)

    def _since(self) -> tuple[float, float]:
        now = (processor(), monotonic())
        last, self._last = self._last, now
        return now[0] - last[0], now[1] - last[1]

    def _write(self, line: dict[str, Any]) -> None:
        self._spent[line["test"] == COLLECTION] += line["processor"]
        self._tests += line["test"] != COLLECTION
        if line["processor"] > BUDGET and line["test"] != COLLECTION:
            self._dear.append((line["processor"], line["test"]))
        if self._file is not None:
            rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in line.items()}
            self._file.write(json.dumps(rounded) + "\n")
            self._file.flush()  # a run that is cut off has measured, too


def read(file: Path) -> list[dict[str, Any]]:
    """The lines of a file that the plugin wrote."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def dearest(costs: Iterable[tuple[float, str]]) -> list[str]:
    """A line for each test, the most expensive first."""
    return [f"{seconds:8.2f} s  {test}" for seconds, test in sorted(costs, reverse=True)]


def folder(test: str, depth: int) -> str:
    """tests/export/to_onnx/test_write.py::test_a -> export/ (depth 1), export/to_onnx/ (2), or the
    file's name where it lies in no such folder."""
    parts = test.partition("::")[0].removeprefix("tests/").split("/")
    return "/".join(parts[:depth]) + ("/" if len(parts) > depth else "")


def by_folder(lines: Iterable[dict[str, Any]], depth: int) -> dict[str, tuple[float, int]]:
    """Processor seconds and number of tests of each folder, the most expensive first."""
    seconds: dict[str, float] = defaultdict(float)
    tests: dict[str, int] = defaultdict(int)
    for line in lines:
        name = folder(line["test"], depth)
        seconds[name] += line["processor"]
        tests[name] += 1
    order = sorted(seconds, key=lambda name: -seconds[name])
    return {name: (seconds[name], tests[name]) for name in order}


def table(lines: list[dict[str, Any]], depth: int, before: list[dict[str, Any]]) -> list[str]:
    """Markdown: processor seconds by folder, beside those of an earlier run where there is one."""
    now, then = by_folder(lines, depth), by_folder(before, depth)
    for both, rows in ((now, lines), (then, before)):
        both["all"] = (sum(row["processor"] for row in rows), len(rows))
    names = [name for name in {**now, **then} if name != "all"] + ["all"]
    earlier = "before, s | " if before else ""
    out = [f"| folder | {earlier}processor time, s | tests |"]
    out.append("|---|" + "--:|" * (out[0].count("|") - 2))
    for name in names:
        seconds, tests = now.get(name, (0.0, 0))
        earlier = f"{then.get(name, (0.0, 0))[0]:.1f} | " if before else ""
        out.append(f"| {name} | {earlier}{seconds:.1f} | {tests} |")
    return out


def costs(lines: Iterable[dict[str, Any]], before: dict[str, float]) -> dict[str, float]:
    """Seconds of processor time of one case of each slow test, by its name without parameters.

    before: what was recorded earlier, which stays where a test did not run to its end now.
    """
    seconds: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        if line.get("slow") and line.get("outcome") == "passed":
            seconds[line["test"].partition("[")[0]].append(line["processor"])
    now = {name: round(sum(each) / len(each), 3) for name, each in seconds.items()}
    return dict(sorted({**before, **now}.items()))


def record(lines: Iterable[dict[str, Any]]) -> None:
    """Write the costs of a run into the table; what its file no longer holds leaves it."""
    before = json.loads(COSTS.read_text(encoding="utf-8")) if COSTS.exists() else {}
    kept = {name: each for name, each in costs(lines, before).items()
            if Path(name.partition("::")[0]).is_file()}  # fmt: skip
    COSTS.write_text(json.dumps(kept, indent=0) + "\n", encoding="utf-8")


def main() -> None:
    """Print the table by folder, and the most expensive tests."""
    parser = argparse.ArgumentParser(description="Sums what the tests of the last run cost.")
    parser.add_argument("file", type=Path, nargs="?", default=FILE)
    parser.add_argument("--top", type=int, default=50, help="so many tests by name")
    parser.add_argument("--depth", type=int, default=1, help="levels of folders")
    parser.add_argument("--before", type=Path, help="the file of an earlier run")
    parser.add_argument("--costs", action="store_true", help="record what slow tests took")
    given = parser.parse_args()
    lines = read(given.file)
    if given.costs:
        record(lines)
        return
    print("\n".join(table(lines, given.depth, read(given.before) if given.before else [])))
    print()
    print("\n".join(dearest((line["processor"], line["test"]) for line in lines)[: given.top]))


if __name__ == "__main__":
    main()
