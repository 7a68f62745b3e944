"""What a run over batches tells while it lasts."""

import sys
import time

_WIDTH, _SECONDS = 24, 0.1  # of the bar; between two drawings


class Progress:
    """Listens to nothing: override what you need. The unit is a batch."""

    def start(self, total: int | None) -> None:
        """Work begins: `total` batches over all passes, None where that is not known."""

    def advance(self) -> None:
        """One more batch is done."""

    def close(self) -> None:
        """The work has ended, or has failed."""


class Bar(Progress):
    """A line on stderr that is drawn over, where that is a terminal; nothing elsewhere."""

    def __init__(self) -> None:
        self._lively = sys.stderr is not None and sys.stderr.isatty()
        self._total: int | None = None
        self._done, self._drawn = 0, 0.0

    def start(self, total: int | None) -> None:
        self._total = total

    def advance(self) -> None:
        self._done += 1
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


def of(progress: "bool | Progress") -> Progress:
    """True is a bar, False is none, anything else listens itself."""
    if isinstance(progress, Progress):
        return progress
    return Bar() if progress else Progress()
