# SPDX-License-Identifier: BSD-3-Clause
"""What a search has measured so far, in a file: a run that was stopped goes on where it was."""

import json
import math
import os
from pathlib import Path
from typing import Any
from uuid import uuid4

from blockscale.core.untrusted.json_text import json_object, read_json

_SCHEMA = 1


class StateError(ValueError):
    """A file holds what another search measured, or no search at all."""


class State:
    """{key: what was measured}, all of it plain data; `path` None keeps it in memory alone.

    run: what tells this search from others
    """

    def __init__(self, path: str | Path | None, run: str):
        self.path = None if path is None else Path(path)
        self._run = run
        self._held: dict[str, Any] = {}
        if self.path is not None:
            self._read(self.path)

    def __contains__(self, key: str) -> bool:
        return key in self._held

    def __getitem__(self, key: str) -> Any:
        return self._held[key]

    def __setitem__(self, key: str, value: Any) -> None:
        """Keep it, and write the file: beside its place, then renamed."""
        self._held[key] = value
        if self.path is not None:
            data = {"schema": _SCHEMA, "search": self._run, "measured": plain(self._held)}
            write_whole(self.path, json.dumps(data, indent=1, allow_nan=False))

    def _read(self, path: Path) -> None:
        if path.is_dir():
            raise StateError(f"{path} is a directory: name a file for the search's state")
        if not path.parent.is_dir():
            raise StateError(f"{path.parent} is not a directory: create it first")
        if not path.exists():
            return
        data = json_object(read_json(path), path)
        measured = data.get("measured")
        if data.get("schema") != _SCHEMA or not isinstance(measured, dict):
            raise StateError(
                f"{path} is not the state of a search: name another file, or delete it"
            )
        if data.get("search") != self._run:
            raise StateError(
                f"{path} was measured by another search (other candidates, another model, "
                f"objective or score, or other batches): name another file, or delete it"
            )
        self._held = {key: _back(value) for key, value in measured.items()}


def write_whole(path: Path, text: str) -> None:
    """Write a file beside its place and rename it. Raises OSError where that cannot be."""
    beside = path.with_name(f".{path.name}.{uuid4().hex[:8]}.partial")
    try:
        with beside.open("w") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def plain(value: Any) -> Any:
    """Data for JSON, which has neither infinities nor NaN: they become text."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _back(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _back(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_back(each) for each in value]
    return float(value) if value in ("inf", "-inf", "nan") else value
