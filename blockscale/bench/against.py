# SPDX-License-Identifier: BSD-3-Clause
"""Is a run slower than an earlier one? Each of ours by its ratio to the ceiling of its own case.

Seconds of two days say as much about the machine as about the code. A case races ours against a
ceiling (a copy, torch's own product) in the same rounds, so what is compared is time over the best
ceiling's time; plain seconds only where a case has no ceiling.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from blockscale.reporting.table import Table

TOLERANCE = 1.1  # times as slow as before is too slow
_HEADER = ("case", "by", "before", "now", "ratio", "")


@dataclass(frozen=True)
class Change:
    """One of ours in both runs: its time before and now, over its ceiling or in seconds."""

    case: str
    by: str
    before: float
    now: float
    relative: bool

    @property
    def ratio(self) -> float:
        """How many times as long as before."""
        return self.now / self.before

    def slower(self, tolerance: float) -> bool:
        """Whether that is too long."""
        return self.ratio > tolerance


def changes(before: dict[str, Any], now: dict[str, Any]) -> list[Change]:
    """What both runs measured of ours, the largest ratio first.

    Raises ValueError for runs on different devices and for runs without a case in common.
    """
    devices = [run["settings"]["device"] for run in (before, now)]
    if devices[0] != devices[1]:
        raise ValueError(
            f"the earlier run was measured on {devices[0]}, this one on {devices[1]}: compare "
            "runs of one device"
        )
    earlier = {case["name"]: case for case in before["cases"]}
    results = [
        change
        for case in now["cases"]
        if case["name"] in earlier
        for change in _of_case(earlier[case["name"]], case)
    ]
    if not results:
        raise ValueError(
            "the earlier run measured none of these cases: measure with the same options"
        )
    return sorted(results, key=lambda change: -change.ratio)


def _of_case(before: dict[str, Any], now: dict[str, Any]) -> Iterator[Change]:
    old = {line["name"]: line["seconds"] for line in before["contestants"]}
    ceilings = [_ceiling(before), _ceiling(now)]
    for line in now["contestants"]:
        if line["kind"] != "ours" or line["name"] not in old:
            continue
        over = ceilings if all(ceilings) else [1.0, 1.0]
        times = (old[line["name"]] / over[0], line["seconds"] / over[1])
        yield Change(now["name"], line["name"], *times, all(ceilings))


def _ceiling(case: dict[str, Any]) -> float:
    """Seconds of the best ceiling of a case; 0 where it has none."""
    times = [line["seconds"] for line in case["contestants"] if line["kind"] == "ceiling"]
    return min(times, default=0.0)


def regressions(changes: list[Change], tolerance: float) -> Table:
    """Every change as a table. Raises ValueError for a tolerance that is not above 0."""
    check_tolerance(tolerance)
    rows = [
        (
            change.case, change.by, _figure(change.before, change.relative),
            _figure(change.now, change.relative), f"{change.ratio:.3f}",
            "✗ slower" if change.slower(tolerance) else "",
        )
        for change in changes
    ]  # fmt: skip
    note = f"time over the best ceiling of the case; ✗ above {tolerance:g} times the earlier run"
    return Table("Against the earlier run", _HEADER, rows, 2, note)


def check_tolerance(tolerance: float) -> None:
    """Raise ValueError unless it can be one."""
    if not tolerance > 0:
        raise ValueError(
            f"the tolerance must be > 0 (1.1 allows a tenth slower), got {tolerance:g}"
        )


def verdict(changes: list[Change], tolerance: float) -> str:
    """What is too slow, in one line; empty if nothing is."""
    slow = [change for change in changes if change.slower(tolerance)]
    if not slow:
        return ""
    worst = slow[0]
    return (
        f"{len(slow)} of {len(changes)} are slower than {tolerance:g} times the earlier run, most "
        f"of all {worst.by} of {worst.case}: {worst.ratio:.2f} times"
    )


def _figure(value: float, relative: bool) -> str:
    return f"{value:.3f}" if relative else f"{1e6 * value:.1f} µs"
