"""A bar on stderr for runs over batches."""

import sys
import time

from blockscale.core.progress import Progress

_WIDTH, _SECONDS = 24, 0.1  # of the bar; between two drawings


class BatchBar(Progress):
    """A line on stderr that is drawn over, where that is a terminal; nothing elsewhere."""

    def __init__(self) -> None:
        self._lively = sys.stderr is not None and sys.stderr.isatty()
        self._total: int | None = None
        self._done, self._drawn = 0, 0.0

    def start(self, total: int | None, done: int = 0) -> None:
        self._total, self._done = total, done

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
            return f"calibrating: {self._done} batches"
        filled = _WIDTH * self._done // max(self._total, 1)
        bar = "━" * filled + " " * (_WIDTH - filled)
        return f"calibrating [{bar}] {self._done} of {self._total} batches"


def listener(progress: bool | Progress) -> Progress:
    """True is a bar, False is none, anything else listens itself."""
    if isinstance(progress, Progress):
        return progress
    return BatchBar() if progress else Progress()
