# SPDX-License-Identifier: BSD-3-Clause
"""Long work: how far it is, how it closes what it opened, and silence around other libraries."""

import logging
import signal
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

# What holds a file, a process or memory until it is closed, as a context manager.


class Closing(ABC):
    """`with` on it closes it at the end, however the block ends; errors go on."""

    @abstractmethod
    def close(self) -> None:
        """Give back what is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@contextmanager
def stopped_softly() -> Iterator[None]:
    """SIGTERM ends the block with SystemExit(143), so that what it opened is closed.

    Python itself ends at once: schedulers and torchrun send this signal before they kill. In other
    threads than the main one, and where the signal is looked after, nothing changes.
    """

    def stop(number: int, frame: object) -> None:
        del frame
        raise SystemExit(128 + number)

    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """No warnings and no log lines below errors, while another library is imported or at work."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


# What a long run tells its caller while it lasts.


class Progress:
    """Listens to nothing: override what you need.

    The unit is what the run says it is: batches for `bs.calibrate` and `bs.compare`, bytes of the
    source tensors for `bs.quantize_directory` and the comparison of files.
    """

    def start(self, total: int | None, done: int = 0) -> None:
        """Work begins on `total` units, None where that is not known.

        done: how many of them an earlier run has finished, where a run can go on from there.
        """

    def advance(self, name: str = "", amount: int = 1) -> None:
        """`amount` more units are done; name: of the tensor that they belong to, if of one."""

    def say(self, text: str) -> None:
        """One line, such as what a resumed run found."""

    def close(self) -> None:
        """A run over batches has ended, or has failed. Runs over files leave that to the caller."""
