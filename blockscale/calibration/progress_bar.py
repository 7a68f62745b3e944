# SPDX-License-Identifier: BSD-3-Clause
"""A bar on stderr for runs over batches."""

import sys
import time

from blockscale.core.work import Progress

_WIDTH, _SECONDS = 24, 0.1  # of the bar; between two drawings


class BatchBar(Progress):
    """A line on stderr that is drawn over, where that is a terminal; nothing elsewhere."""

    def __init__(self, doing: str = "calibrating", unit: str = "batches") -> None:
        self._doing, self._unit = doing, unit
        self._lively = sys.stderr is not None and sys.stderr.isatty()
        self._total: int | None = None
        self._done, self._drawn = 0, 0.0
        self._began, self._start = 0, time.monotonic()  # what was done before, and when it began

    def start(self, total: int | None, done: int = 0) -> None:
        self._total, self._done = total, done
        self._began, self._start = done, time.monotonic()

    def advance(self, name: str = "", amount: int = 1) -> None:
        del name
        self._done += amount
        now = time.monotonic()
        if self._lively and (now - self._drawn >= _SECONDS or self._done == self._total):
            self._drawn = now
            sys.stderr.write(f"\r{self._line()}\x1b[K")
            sys.stderr.flush()

    def close(self) -> None:
        if self._lively and self._done:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def _line(self) -> str:
        if self._total is None:
            return f"{self._doing}: {self._done} {self._unit}"
        filled = _WIDTH * self._done // max(self._total, 1)
        bar = "━" * filled + " " * (_WIDTH - filled)
        told = f"{self._doing} [{bar}] {self._done} of {self._total} {self._unit}"
        return ", ".join(filter(None, [told, self._left()]))

    def _left(self) -> str:
        """How long the rest takes, if it goes on as it did; nothing at the ends."""
        done, total = self._done - self._began, self._total
        if total is None or done <= 0 or self._done >= total:
            return ""
        seconds = (time.monotonic() - self._start) / done * (total - self._done)
        minutes, seconds = divmod(round(seconds), 60)
        return f"{minutes}:{seconds:02} left"


def listener(progress: bool | Progress, *doing: str) -> Progress:
    """True is a bar, False is none, anything else listens itself.

    doing: what the bar says is done, and to what units
    """
    if isinstance(progress, Progress):
        return progress
    return BatchBar(*doing) if progress else Progress()
