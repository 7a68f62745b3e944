# SPDX-License-Identifier: BSD-3-Clause
"""Which slow tests `.ci/run` runs: a function of the commit, its base and recorded costs.

`--budget SECONDS --base COMMIT` chooses, among the tests that pytest would run, as many as fit into
so many seconds of processor time, by what they took when it was recorded (tests/slow_costs.json):

1. those that changed since the base, belong to a file that did, import a helper that did, or have
   the path of a file that did as a parameter (a page whose code they run);
2. planted bugs in files that changed;
3. those of the rooms (folders of the package) that changed;
4. those of the rooms that import these;
5. all others.

Each of these may fill the budget up to a limit of its own (LIMITS), so that the next has a part of
it, and from 3 on a file has at most SHARE of it, so that many files have some; what is left over
goes to the first that were left out. Within each the order is drawn from the base, so that
another day runs others, and mending what fails does not change which they are. No clock and no load
has a part in it: two machines run the same.
What is not run is listed by name in `.pytest_cache/not_run.txt`.
"""

import hashlib
import json
import re
import statistics
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
COSTS = ROOT / "tests" / "slow_costs.json"
NOT_RUN = Path(".pytest_cache") / "not_run.txt"
UNKNOWN = 3.0  # seconds of a slow test that has no entry, at least
LIMITS = (0.5, 0.7, 0.8, 0.9, 1.0)  # of the budget, for a rank and those before it
SHARE = 0.04  # of the budget, for one file whose code did not change
OWN, BUGS, ROOM, IMPORTING, OTHERS = range(len(LIMITS))
_IMPORT = re.compile(
    r"^\s*(?:from|import)\s+blockscale\.(\w+)(?:\.(\w+)|\s+import\s+\(?([\w,\s]+))?", re.MULTILINE
)
_SHOWN = 15  # files in the summary


@dataclass(frozen=True)
class Case:
    """A test, by pytest's name; the file that its planted bug breaks, and the one that is its
    parameter, if it has them."""

    name: str
    bug: str | None = None
    about: str | None = None

    @property
    def file(self) -> str:
        """The path in the repository."""
        return self.name.partition("::")[0]

    @property
    def function(self) -> str:
        """The name without the parameters."""
        return self.name.partition("[")[0]


def room(path: str) -> str:
    """blockscale/export/to_onnx/x.py, tests/export/test_y.py -> export; kernels are by backend.

    A file outside the package and its tests is in the room of its first folder.
    """
    parts = path.split("/")[:-1]
    if parts[:1] in (["blockscale"], ["tests"]):
        parts = parts[1:]
    return "/".join(parts[: 2 if parts[:1] == ["kernels"] else 1])


def importers(texts: Mapping[str, str]) -> dict[str, set[str]]:
    """Of the package's Python files, by their paths: each room -> the rooms that import it."""
    folders = {path.rpartition("/")[0] for path in texts}
    users: dict[str, set[str]] = defaultdict(set)
    for path, text in texts.items():
        for first, second, names in _IMPORT.findall(text):
            for name in re.findall(r"\w+", names) if first == "kernels" and names else [second]:
                folder = f"blockscale/{first}/{name}"
                used = folder if folder in folders else f"blockscale/{first}"
                users[room(f"{used}/")].add(room(path))
    return {used: rooms - {used} for used, rooms in users.items()}


@dataclass(frozen=True)
class Changes:
    """What differs between two commits. files: paths in the repository; users: `importers`;
    tests: the texts of the test files, by their paths."""

    files: frozenset[str]
    users: Mapping[str, set[str]]
    tests: Mapping[str, str]

    @cached_property
    def rooms(self) -> set[str]:
        """Where something changed."""
        return {room(path) for path in self.files} - {"", "docs", "support"}

    @cached_property
    def importing(self) -> set[str]:
        """The rooms that import one of those directly."""
        return set().union(*(self.users.get(each, set()) for each in self.rooms)) - self.rooms

    @cached_property
    def helpers(self) -> set[str]:
        """Test files that import one of tests/support that changed."""
        names = {Path(path).stem for path in self.files if path.startswith("tests/support/")}
        if not names:
            return set()
        pattern = re.compile(rf"\btests\.support\b(?:\.| import .*\b)(?:{'|'.join(names)})\b")
        return {path for path, text in self.tests.items() if pattern.search(text)}

    def rank(self, case: Case) -> int:
        """OWN, BUGS, ROOM, IMPORTING or OTHERS: what a test has to do with what changed."""
        if case.bug is not None:
            return BUGS if case.bug in self.files else OTHERS
        mirrored = case.file.replace("tests/", "blockscale/", 1).replace("/test_", "/")
        if case.file in self.helpers or not self.files.isdisjoint(
            {case.file, mirrored, case.about}
        ):
            return OWN
        for rank, rooms in ((ROOM, self.rooms), (IMPORTING, self.importing)):
            if room(case.file) in rooms:
                return rank
        return OTHERS


def choose(
    cases: Sequence[Case], changes: Changes, costs: Mapping[str, float], budget: float, seed: str
) -> list[Case]:
    """The tests that are run, in the order in which they were chosen.

    costs: seconds of processor time of one case, by the function's name without parameters; one
    that has none counts as the median of the others, and as UNKNOWN where that is more, or most
    have none.
    """
    functions = {case.function for case in cases}
    known = [costs[each] for each in functions if each in costs]
    most = len(known) * 2 >= max(len(functions), 1)
    usual = max(statistics.median(known), UNKNOWN) if most else UNKNOWN
    ranks = {case: changes.rank(case) for case in cases}

    def key(case: Case) -> tuple[int, bytes, bytes]:
        return ranks[case], _drawn(seed, case.file), _drawn(seed, case.name)

    order = sorted(ranks, key=key)
    chosen: dict[Case, None] = {}
    spent, of_file = 0.0, dict.fromkeys((case.file for case in cases), 0.0)
    for limited in (True, False):
        for case in order:
            cost = costs.get(case.function, usual)
            if case in chosen or spent + cost > budget * (LIMITS[ranks[case]] if limited else 1):
                continue
            shares = limited and ranks[case] > BUGS and of_file[case.file] > 0
            if shares and of_file[case.file] + cost > budget * SHARE:
                continue
            chosen[case] = None
            spent += cost
            of_file[case.file] += cost
    return list(chosen)


def _drawn(seed: str, name: str) -> bytes:
    return hashlib.sha256(f"{seed} {name}".encode()).digest()


def not_run(names: Iterable[str]) -> list[str]:
    """Lines: each file and how many of its tests are left out, the names below it."""
    files: dict[str, list[str]] = defaultdict(list)
    for name in names:
        file, _, rest = name.partition("::")
        files[file].append(rest)
    lines: list[str] = []
    for file, rests in sorted(files.items()):
        lines += [f"{len(rests):5} of {file}", *(f"        {rest}" for rest in rests)]
    return lines


def changed_since(commit: str) -> frozenset[str]:
    """The files, as paths in the repository, that differ from a commit; raises if there is none."""
    return frozenset(_git(f"--base {commit}", "diff", "--name-only", commit).splitlines())


def _git(what: str, *command: str) -> str:
    done = subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise pytest.UsageError(f"{what}: git says {done.stderr.strip()}")
    return done.stdout.strip()


def _texts(folder: str) -> dict[str, str]:
    paths = sorted((ROOT / folder).rglob("*.py"))
    return {each.relative_to(ROOT).as_posix(): each.read_text(encoding="utf-8") for each in paths}


class Budget:
    """A pytest plugin that leaves out what does not fit, and says so."""

    def __init__(self, seconds: float, base: str):
        self._seconds, self._base = seconds, base
        self._lines: list[str] = []

    @pytest.hookimpl(trylast=True)  # `-m slow` has chosen by then
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """In each process of xdist alike; the first of them has the list for the summary."""
        commit = _git("--budget", "rev-parse", self._base)
        changes = Changes(changed_since(self._base), importers(_texts("blockscale")),
                          _texts("tests"))  # fmt: skip
        costs = json.loads(COSTS.read_text(encoding="utf-8"))
        cases = {_case(item): item for item in items}
        chosen = choose(list(cases), changes, costs, self._seconds, commit)
        left = [case for case in cases if case not in set(chosen)]
        config.hook.pytest_deselected(items=[cases[case] for case in left])
        kept = {id(cases[case]) for case in chosen}
        items[:] = [item for item in items if id(item) in kept]
        ranks = Counter(changes.rank(case) for case in chosen)
        self._lines = _summary(commit, self._base, self._seconds, ranks, len(cases))
        self._lines += not_run(case.name for case in left)
        output = getattr(config, "workeroutput", None)
        if output is not None:
            output["budget"] = self._lines

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """What a worker of xdist hands over when it ends."""
        self._lines = getattr(node, "workeroutput", {}).get("budget", self._lines)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The choice, the files that have tests left out, and where the names are."""
        if not self._lines:
            return
        path = terminalreporter.config.rootpath / NOT_RUN
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(self._lines) + "\n", encoding="utf-8")
        head, files = self._lines[:2], [each for each in self._lines[2:] if each[:5].strip()]
        if len(files) > _SHOWN:
            files[_SHOWN:] = [f"  ... of {len(files) - _SHOWN} files more; all names: {NOT_RUN}"]
        terminalreporter.section("slow tests that were not run")
        terminalreporter.write("\n".join([*head, *files]) + "\n")


def _case(item: pytest.Item) -> Case:
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    bugs = [each["file"] for each in parameters
            if isinstance(each, dict) and {"file", "replace"} <= each.keys()]  # fmt: skip
    about = [each.relative_to(ROOT).as_posix() for each in parameters
             if isinstance(each, Path) and each.is_relative_to(ROOT)]  # fmt: skip
    return Case(item.nodeid, bugs[0] if bugs else None, about[0] if about else None)


def _summary(commit: str, base: str, seconds: float, ranks: Counter[int], total: int) -> list[str]:
    names = (
        "of what changed",
        "bugs in it",
        "of its rooms",
        "of rooms that import these",
        "others",
    )
    parts = ", ".join(f"{ranks[rank]} {name}" for rank, name in enumerate(names))
    return [
        f"seed {commit}, base {base}, {seconds:g} s of processor time as recorded:",
        f"{ranks.total()} of {total} tests chosen: {parts}; left out:",
    ]
