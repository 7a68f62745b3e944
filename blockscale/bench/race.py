# SPDX-License-Identifier: BSD-3-Clause
"""Two checkouts measured case by case, in turns: what drifts, drifts for both."""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blockscale.bench.machine import ALLOCATOR, CHECKOUT, GUARD
from blockscale.bench.requests import Case
from blockscale.bench.run import Watcher
from blockscale.bench.settings import TINY, Settings
from blockscale.core.work import Closing
from blockscale.reporting.table import Table

ROUNDS = 5  # turns of each side for a case; every other one the other side is first
SIDES = ("here", "beside")
_WORKER = Path(__file__).with_name("worker.py")


class Worker(Closing):
    """A process that measures with the package of one checkout; a context."""

    def __init__(self, checkout: Path, settings: Settings):
        plain = {
            "device": settings.device, "quick": settings.quick, "peers": False,
            "only": settings.only, "formats": list(settings.formats),
            "tiny": settings.sizes == TINY,
        }  # fmt: skip
        self.checkout = checkout
        environment = {**os.environ, **ALLOCATOR, GUARD: "1", "PYTHONPATH": str(checkout)}
        self._process = subprocess.Popen(
            # -P: the folder of the script is no place to import from
            [sys.executable, "-P", str(_WORKER), json.dumps(plain)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
            cwd=checkout,
        )  # fmt: skip
        try:
            self.about = self._answer()
            self._check()
        except BaseException:
            self.close()
            raise

    def _check(self) -> None:
        package = Path(self.about["package"]).resolve()
        if self.checkout.resolve() not in package.parents:
            raise ValueError(f"{self.checkout} was not measured: Python imported {package} instead")

    def measure(self, case: str, seconds: float) -> dict[str, Any]:
        """The case as `blockscale.bench.run.measure` gives it. Raises ValueError if it fails."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"case": case, "seconds": seconds}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            raise ValueError(
                f"the process of {self.checkout} ended with {code}; its last lines are above. Is "
                f"its native library built, and does it have blockscale/bench?"
            )
        return dict(json.loads(line))

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


@dataclass
class Pair:
    """One contestant on both sides: seconds of each round, in order."""

    case: str
    by: str
    seconds: dict[str, list[float]] = field(default_factory=lambda: {side: [] for side in SIDES})

    @property
    def ratios(self) -> list[float]:
        """Here over beside, round by round: neighbours in time."""
        return [a / b for a, b in zip(*(self.seconds[side] for side in SIDES), strict=True)]

    @property
    def ratio(self) -> float:
        """Their median."""
        return statistics.median(self.ratios)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        medians = {f"{side}_median": statistics.median(self.seconds[side]) for side in SIDES}
        return {"case": self.case, "by": self.by, **self.seconds, **medians, "ratio": self.ratio}


def check_checkout(checkout: str | Path) -> Path:
    """The folder of a checkout. Raises ValueError if it holds no blockscale that can be raced."""
    path = Path(checkout)
    if not (path / "blockscale" / "bench" / "run.py").is_file():
        raise ValueError(
            f"{path} is not a checkout of blockscale: it has no blockscale/bench/run.py"
        )
    return path.resolve()


def race(
    other: str | Path, settings: Settings, watcher: Watcher, here: Path = CHECKOUT
) -> dict[str, Any]:
    """Every case that both checkouts have, as plain data: rounds, medians, ratios.

    settings.seconds is for all cases together. Raises ValueError for what is no checkout, one that
    cannot run, and cases of which none is in both.
    """
    beside = check_checkout(other)
    with Worker(here, settings) as mine, Worker(beside, settings) as theirs:
        names = [name for name in mine.about["cases"] if name in theirs.about["cases"]]
        if not names:
            raise ValueError(
                f"no case that matches {settings.only!r} is in both checkouts: give a part of a "
                "name or a glob that both have, or leave it out"
            )
        watcher.start(len(names), 0)
        pairs = [pair for name in names for pair in _case(name, mine, theirs, settings, watcher)]
        sides = zip(SIDES, (mine, theirs), strict=True)
        return {
            "commits": {side: worker.about["commit"] for side, worker in sides},
            "checkouts": {"here": str(here), "beside": str(beside)},
            "rounds": ROUNDS,
            "left_out": sorted({*mine.about["cases"]} ^ {*theirs.about["cases"]}),
            "pairs": [pair.to_dict() for pair in pairs],
        }


def _case(
    name: str, mine: Worker, theirs: Worker, settings: Settings, watcher: Watcher
) -> Iterator[Pair]:
    """What is ours in a case, in turns."""
    watcher.begin(_case_of(name))
    share = settings.seconds / max(len(mine.about["cases"]), 1) / (2 * ROUNDS)
    pairs: dict[str, Pair] = {}
    for turn in range(ROUNDS):
        sides: Sequence[tuple[str, Worker]] = list(zip(SIDES, (mine, theirs), strict=True))
        lines = {
            side: _ours(worker.measure(name, min(share, 1.0)))
            for side, worker in (sides if turn % 2 == 0 else sides[::-1])
        }
        for by in lines["here"].keys() & lines["beside"].keys():
            pair = pairs.setdefault(by, Pair(name, by))
            for side in SIDES:
                pair.seconds[side].append(lines[side][by])
    watcher.end(_case_of(name))
    yield from pairs.values()


def _ours(record: Mapping[str, Any]) -> dict[str, float]:
    return {
        each["name"]: each["seconds"] for each in record["contestants"] if each["kind"] == "ours"
    }


def _case_of(name: str) -> Case:
    """A case for a watcher, which asks for its name."""
    return Case(name, name.partition("/")[0], {}, tuple, lambda *_: {})


def table(data: Mapping[str, Any]) -> Table:
    """Both sides of every pair, the slowest here first."""
    rows = []
    for pair in sorted(data["pairs"], key=lambda each: -each["ratio"]):
        ratios = [a / b for a, b in zip(pair["here"], pair["beside"], strict=True)]
        rows.append((
            pair["case"], pair["by"], f"{1e6 * pair['here_median']:.1f}",
            f"{1e6 * pair['beside_median']:.1f}", f"{pair['ratio']:.3f}",
            f"{min(ratios):.3f} … {max(ratios):.3f}",
        ))  # fmt: skip
    header = ("case", "by", "here µs", "beside µs", "here / beside", "over rounds")
    note = (
        f"medians of {data['rounds']} rounds in turns; here: {data['commits']['here'][:12]}, "
        f"beside: {data['commits']['beside'][:12]}"
    )
    return Table("This checkout beside the other", header, rows, 2, note)
