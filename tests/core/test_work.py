# SPDX-License-Identifier: BSD-3-Clause
"""What is held is given back at the end of a `with`, also of one that an error ends."""

import logging
import os
import signal
import threading
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.core.work import Closing, Progress, quiet_libraries, stopped_softly
from tests.support.file_models import tiny_tensors, write_model


class Held(Closing):
    closed = 0

    def close(self) -> None:
        self.closed += 1


def test_a_block_ends_with_close() -> None:
    with Held() as held:
        assert held.closed == 0
    assert held.closed == 1


def test_errors_go_on() -> None:
    held = Held()
    with pytest.raises(KeyError), held:
        raise KeyError("x")
    assert held.closed == 1


def test_what_cannot_be_closed_is_none() -> None:
    with pytest.raises(TypeError, match=r"abstract method '?close"):
        type("Open", (Closing,), {})()


# What a long run tells adds up, whoever listens; and one may listen to a part of it.


class Heard(Progress):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.totals: list[int | None] = []
        self.done = 0
        self.closed = 0

    def start(self, total: int | None, done: int = 0) -> None:
        self.totals.append(total)
        self.done += done

    def advance(self, name: str = "", amount: int = 1) -> None:
        assert amount > 0
        self.done += amount

    def close(self) -> None:
        self.closed += 1


class Deaf(Progress):
    """Overrides nothing."""


@pytest.mark.parametrize("sized", [True, False])
def test_batches(sized: bool) -> None:
    batches = [torch.randn(4, 16) for _ in range(5)]
    heard = Heard()
    for listener in (heard, Deaf()):
        model = nn.Sequential(nn.Linear(16, 8))
        given = batches if sized else iter(batches)
        bs.calibrate(model, given, bs.Recipe("int8", input="int8"), progress=listener)
    assert heard.totals == [5 if sized else None]
    assert (heard.done, heard.closed) == (5, 1)


def test_bytes_of_a_directory(tmp_path: Path) -> None:
    tensors = tiny_tensors()
    source = write_model(tmp_path / "model", tensors)
    heard = Heard()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n, listener in enumerate((heard, Deaf())):
            bs.quantize_directory(source, tmp_path / f"out{n}", "int8", progress=listener)
    assert heard.totals == [heard.done]
    assert heard.done > 0


def test_sigterm_closes_what_is_open() -> None:
    held = Held()
    with pytest.raises(SystemExit) as end, stopped_softly(), held:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
    assert end.value.code == 143 and held.closed == 1
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_sigterm_that_is_looked_after_stays_so() -> None:
    seen = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        with stopped_softly():
            os.kill(os.getpid(), signal.SIGTERM)
        assert seen == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_other_threads_leave_the_signal_alone() -> None:
    found = []

    def look() -> None:
        with stopped_softly():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGTERM)]


# Silence around other libraries.


class Records(logging.Handler):
    """Keeps what reaches the root logger."""

    def __init__(self):
        super().__init__()
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


@pytest.fixture
def records():
    handler = Records()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


def test_other_libraries_are_quiet(records):
    with quiet_libraries():
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        logging.getLogger("theirs").warning("hello")
        logging.getLogger("theirs").error("broken")
    logging.getLogger("theirs").warning("after")
    assert records.messages == ["broken", "after"]
    with pytest.raises(DeprecationWarning):
        warnings.warn("old", DeprecationWarning, stacklevel=1)
