# SPDX-License-Identifier: BSD-3-Clause
"""The file of a run: written after every case, whole or not at all, and gone on with later."""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from blockscale.bench.machine import CHECKOUT, allocator, commit, git, hardware, versions
from blockscale.bench.settings import Settings
from blockscale.core.untrusted import read_json
from blockscale.files.whole import written_whole

SCHEMA = 1
_AGREE = ("settings", "commit", "hardware", "versions", "environment")  # of a run that goes on


class Results:
    """What was measured, and on what; `data` is the file."""

    def __init__(self, path: Path, data: dict[str, Any]):
        self.path, self.data = path, data

    @classmethod
    def start(cls, path: Path, settings: Settings) -> "Results":
        """An empty one; nothing is written yet."""
        return cls(path, about(settings) | {"complete": False, "cases": []})

    @classmethod
    def resume(cls, path: Path, settings: Settings) -> "Results":
        """One that goes on. Raises ValueError if it was measured in another way or is finished."""
        data = read(path)
        new = about(settings)
        for key in _AGREE:
            if differing := _differing(data[key], new[key]):
                raise ValueError(
                    f"{path} cannot be resumed: its {key} was {differing}; measure again "
                    "without --resume"
                )
        return cls(path, data)

    @property
    def case_names(self) -> set[str]:
        """The names of the cases that are in it."""
        return {case["name"] for case in self.data["cases"]}

    def add(self, case: dict[str, Any], seconds: float) -> None:
        """Add a measured case and write the file."""
        self.data["cases"].append(case)
        self.data["seconds"] = round(self.data.get("seconds", 0.0) + seconds, 3)
        self.write()

    def finish(self) -> None:
        """Every case is in it."""
        self.data["complete"] = True
        self.write()

    def write(self) -> None:
        """Write beside its place and rename, so that no half of a file is ever seen."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(self.path) as temporary:
            temporary.write_text(json.dumps(self.data, indent=1) + "\n")


def about(settings: Settings) -> dict[str, Any]:
    """Everything but the figures, as a file gives it back."""
    plain = settings.to_dict()
    del plain["seconds"]  # a run may go on for longer
    data = {
        "schema": SCHEMA,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "settings": plain,
        "hardware": hardware(settings.device),
        "versions": versions(),
        "environment": allocator(),
    }
    return dict(json.loads(json.dumps(data)))


def _differing(old: Any, new: Any) -> str:
    """What does not agree, for people; empty if all does."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return "" if old == new else f"{old!r}, not {new!r}"
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    return ", ".join(f"{key} {old.get(key)!r}, not {new.get(key)!r}" for key in keys)


def read(path: Path) -> dict[str, Any]:
    """A file of this kind. Raises ValueError if it is none."""
    data = read_json(path, finite=False)
    if not is_run(data):
        raise ValueError(f"{path} was not written by `blockscale bench` of this version")
    return dict(data)


def is_run(data: Any) -> bool:
    """Whether it is what this version of `blockscale bench` writes."""
    return isinstance(data, dict) and data.get("schema") == SCHEMA and "cases" in data


def folder() -> Path:
    """Where runs are kept: benchmarks/results of a checkout, else the current directory."""
    return CHECKOUT / "benchmarks" / "results" if (CHECKOUT / "benchmarks").is_dir() else Path()


def new_path(settings: Settings) -> Path:
    """A name that no run has: `full` runs are for keeping, others for looking at."""
    kind = "full" if settings.full else "quick" if settings.quick else "part"
    moment = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return folder() / f"{kind}-{settings.device.replace(':', '')}-{moment}.json"


def newest_incomplete(settings: Settings) -> Path | None:
    """The newest run with these settings that is not complete."""
    own = about(settings)["settings"]
    candidates = [
        (data["when"], path)
        for path, data in _runs(folder().glob("*.json"))
        if not data["complete"] and data["settings"] == own
    ]
    return max(candidates)[1] if candidates else None


def newest_full(
    paths: Sequence[Path] | None = None, kind: str = "cpu"
) -> tuple[Path, dict[str, Any]] | None:
    """The newest run of everything on a kind of device, "cpu" or "cuda".

    It is looked for among `paths`, by default the files that git tracks. On a CPU it is complete; a
    GPU may be lent for less time than that takes, so there one that stopped will do, if none is.
    """
    runs = _runs(tracked_files() if paths is None else paths)
    candidates = [
        (data["complete"], data["when"], path.name, path, data)
        for path, data in runs
        if data["settings"]["full"] and (data["complete"] or kind != "cpu")
        if str(data["settings"]["device"]).partition(":")[0] == kind
    ]
    return max(candidates, key=lambda run: run[:3])[3:] if candidates else None


def tracked_files() -> list[Path]:
    """The result files that git tracks; outside a checkout, all there are."""
    names = git("ls-files", "--", "benchmarks/results")
    if names is None:
        return sorted(folder().glob("*.json"))
    paths = [CHECKOUT / line for line in names.splitlines() if line.endswith(".json")]
    return [path for path in paths if path.exists()]


def _runs(paths: Iterable[Path]) -> Iterable[tuple[Path, dict[str, Any]]]:
    for path in paths:
        data = json.loads(path.read_text())
        if is_run(data):
            yield path, data
