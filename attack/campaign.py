# SPDX-License-Identifier: BSD-3-Clause
"""All parts in turn, for as long as asked, from where the last campaign ended.

The state is one JSON file: for each part the next case, what was counted, and what failed, with an example
of each kind. A campaign with another seed, or of other sources, starts its own.
"""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from attack.part import Part
from attack.worker import Worker

SLICE = 15.0  # seconds of a part before the next one has its turn
_EXAMPLES = 3  # of a kind of failure


class Campaign:
    """What was attacked so far, and how it went."""

    def __init__(self, state: Path, seed: int, version: str):
        """version: of what is attacked; figures of another one are not added to."""
        self._path, self.seed = state, seed
        known = json.loads(state.read_text()) if state.exists() else {}
        same = known.get("seed") == seed and known.get("version") == version
        self.state: dict[str, Any] = (
            known if same else {"seed": seed, "version": version, "parts": {}}
        )

    def of(self, part: Part) -> dict[str, Any]:
        """The part's own: next, seconds, counts, failures {kind: {count, cases, text}}."""
        empty: dict[str, Any] = {"next": 0, "seconds": 0.0, "counts": {}, "failures": {}}
        found: dict[str, Any] = self.state["parts"].setdefault(part.name, empty)
        found.setdefault("unit", part.unit)
        found["wanted"] = part.wanted
        return found

    def run(self, parts: Sequence[Part], seconds: float, say: Callable[[Part], None]) -> None:
        """Attack for so long; `say` is called after each turn. Ctrl-C loses the turn that it ends."""
        end = time.monotonic() + seconds
        share = sum(part.share for part in parts)
        turn = min(SLICE, max(seconds / 2, 1.0) * min(part.share for part in parts) / share)
        while time.monotonic() < end:
            for part in parts:
                until = min(end, time.monotonic() + turn * part.share * len(parts) / share)
                if until > time.monotonic():
                    self._turn(part, until)
                    say(part)

    def _turn(self, part: Part, until: float) -> None:
        own, begun = self.of(part), time.monotonic()
        folder = place()
        try:
            found = Worker(part, self.seed, folder).run(own["next"], until)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        own["next"] = found["next"]
        own["seconds"] += time.monotonic() - begun
        for name, more in found["counts"].items():
            own["counts"][name] = own["counts"].get(name, 0) + more
        for failure in found["failures"]:
            self._note(own["failures"], failure)
        self.save()

    def _note(self, failures: dict[str, Any], failure: dict[str, Any]) -> None:
        new = {"count": 0, "cases": [], "text": failure["text"]}
        kind = failures.setdefault(failure["kind"], new)
        kind["count"] += 1
        kind["cases"] = [*kind["cases"], failure["case"]][:_EXAMPLES]

    def save(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps(self.state, indent=1) + "\n")
        partial.replace(self._path)


def place() -> Path:
    """A new folder, in memory where there is room for it."""
    fast = Path("/dev/shm")
    usable = fast.is_dir() and os.access(fast, os.W_OK)
    return Path(tempfile.mkdtemp(prefix="blockscale-attack-", dir=fast if usable else None))
