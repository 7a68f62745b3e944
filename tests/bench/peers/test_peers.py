# SPDX-License-Identifier: BSD-3-Clause
"""Other libraries are found by their files; one that fails is told of, and nothing stops."""

import logging
import warnings
from dataclasses import replace

import pytest

from blockscale.bench import peers
from blockscale.bench.peers import onnxruntime, torch_own, torchao
from blockscale.bench.requests import Peer
from tests.support.bench_runs import SETTINGS, measured


def test_a_peer_that_fails_is_told_of(monkeypatch):
    def fails():
        raise OSError("no library\nand more")

    monkeypatch.setattr(torch_own, "linear", lambda layer: [Peer("theirs", fails)])
    monkeypatch.setattr(torchao, "unavailable", lambda: "torchao is not installed")
    monkeypatch.setattr(onnxruntime, "unavailable", lambda: None)  # whether it is or not
    monkeypatch.setattr(
        onnxruntime, "linear", lambda layer: [Peer("late", lambda: lambda x: fails)]
    )
    [case] = measured(replace(SETTINGS, peers=True, only="linear/256x32/m=2"))
    assert case["skipped"] == [
        {"name": "theirs", "reason": "OSError: no library"},
        {"name": "torchao", "reason": "torchao is not installed"},
        {"name": "late", "reason": "OSError: no library"},
    ]


def test_errors_in_one_line():
    assert peers.told(OSError("no library\nand more")) == "OSError: no library"
    assert peers.told(ValueError()) == "ValueError: "
    assert len(peers.told(ValueError("long " * 100))) == len("ValueError: ") + 200


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
    with peers.hushed():
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        logging.getLogger("theirs").warning("hello")
        logging.getLogger("theirs").error("broken")
    logging.getLogger("theirs").warning("after")
    assert records.messages == ["broken", "after"]
    with pytest.raises(DeprecationWarning):
        warnings.warn("old", DeprecationWarning, stacklevel=1)
