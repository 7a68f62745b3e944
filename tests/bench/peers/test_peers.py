# SPDX-License-Identifier: BSD-3-Clause
"""Other libraries are found by their files; one that fails is told of, and nothing stops."""

from dataclasses import replace

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
    assert peers.error_line(OSError("no library\nand more")) == "OSError: no library"
    assert peers.error_line(ValueError()) == "ValueError: "
    assert len(peers.error_line(ValueError("long " * 100))) == len("ValueError: ") + 200
