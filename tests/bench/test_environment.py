# SPDX-License-Identifier: BSD-3-Clause
"""The process that measures: the allocator keeps memory, and every core works."""

import os
import sys

import torch

import blockscale as bs
from blockscale.bench import environment


def test_starting_again(monkeypatch, capsys):
    wanted = environment.needed({"A": "b"})
    if sys.platform != "linux":
        assert wanted is None
        return
    assert wanted == {"A": "b", **environment.ALLOCATOR, environment.GUARD: "1"}
    assert environment.needed(wanted) is None
    assert environment.needed({environment.GUARD: "1"}) is None  # once, whatever comes of it
    started = []
    monkeypatch.delenv(environment.GUARD, raising=False)
    for name in environment.ALLOCATOR:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "execve", lambda *args: started.append(args))
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "blockscale", "bench", "--quick"])
    environment.start_again()
    [(program, arguments, given)] = started
    assert (program, arguments[1:]) == (sys.executable, ["-m", "blockscale", "bench", "--quick"])
    assert given[environment.GUARD] == "1"


def test_the_settings_are_told(monkeypatch):
    for name in environment.ALLOCATOR:
        monkeypatch.delenv(name, raising=False)
    assert set(environment.allocator().values()) == {"the system's default"}
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "5")
    assert environment.allocator()["MALLOC_TRIM_THRESHOLD_"] == "5"


def test_every_core_and_no_gradients():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        with environment.every_core():
            assert torch.get_num_threads() == bs.hardware().cores
            assert not torch.is_grad_enabled()
        assert torch.get_num_threads() == 1
        assert torch.is_grad_enabled()
    finally:
        torch.set_num_threads(before)
