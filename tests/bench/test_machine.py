# SPDX-License-Identifier: BSD-3-Clause
"""What a figure was measured on."""

import importlib.metadata
import json
import os
import platform
import subprocess
import sys

import torch

import blockscale as bs
from blockscale.bench import machine


def test_versions(monkeypatch):
    monkeypatch.setattr(machine, "PACKAGES", ("torch", "no-such-package"))
    versions = machine.versions()
    assert versions == {
        "python": platform.python_version(),
        "blockscale": bs.__version__,
        "torch": importlib.metadata.version("torch"),  # without "+cu130" in torch's own wheels
        "no-such-package": "not installed",
    }


def test_the_machine_is_plain_data():
    data = machine.hardware()
    assert json.loads(json.dumps(data)) == json.loads(json.dumps(data))
    assert data["processor"] == bs.hardware().processor
    assert data["cache_bytes"] == machine.last_cache("cpu") >= 1 << 18
    assert "backends" not in data  # they depend on the moment


def test_the_cache_of_a_system_that_does_not_tell(monkeypatch):
    monkeypatch.setattr(machine.pathlib.Path, "glob", lambda self, pattern: iter(()))
    assert machine.last_cache.__wrapped__("cpu") == 32 << 20


def checkout(folder, monkeypatch):
    """A repository of one commit, in the place of ours; -> what runs git in it."""

    def git(*arguments):
        who = ("-c", "user.name=n", "-c", "user.email=e@e")
        command = ["git", "-C", str(folder), *who, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    (folder / "blockscale").mkdir()
    (folder / "blockscale" / "__init__.py").touch()
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    monkeypatch.setattr(machine, "CHECKOUT", folder)
    return git


def test_the_commit(tmp_path, monkeypatch):
    git = checkout(tmp_path, monkeypatch)
    head = git("rev-parse", "HEAD")
    assert machine.commit() == head
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    (results / "run.json").touch()
    assert machine.commit() == head  # a run's own file changes nothing
    (tmp_path / "blockscale" / "new.py").touch()
    assert machine.commit() == f"{head}+"


def test_no_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "CHECKOUT", tmp_path)
    assert machine.commit() == "unknown"
    checkout(tmp_path, monkeypatch)("rm", "-q", "--cached", "blockscale/__init__.py")
    assert machine.commit() == "unknown"  # installed inside somebody else's checkout
    monkeypatch.setenv("PATH", "")
    assert machine.git("status") is None


def test_starting_again(monkeypatch, capsys):
    wanted = machine.restart_environment({"A": "b"})
    if sys.platform != "linux":
        assert wanted is None
        return
    assert wanted == {"A": "b", **machine.ALLOCATOR, machine.GUARD: "1"}
    assert machine.restart_environment(wanted) is None
    assert machine.restart_environment({machine.GUARD: "1"}) is None  # once, whatever comes of it
    started = []
    monkeypatch.delenv(machine.GUARD, raising=False)
    for name in machine.ALLOCATOR:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "execve", lambda *args: started.append(args))
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "blockscale", "bench", "--quick"])
    machine.start_again()
    [(program, arguments, given)] = started
    assert (program, arguments[1:]) == (sys.executable, ["-m", "blockscale", "bench", "--quick"])
    assert given[machine.GUARD] == "1"


def test_the_settings_are_told(monkeypatch):
    for name in machine.ALLOCATOR:
        monkeypatch.delenv(name, raising=False)
    assert set(machine.allocator().values()) == {"the system's default"}
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "5")
    assert machine.allocator()["MALLOC_TRIM_THRESHOLD_"] == "5"


def test_every_core_and_no_gradients():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        with machine.every_core():
            assert torch.get_num_threads() == bs.hardware().cores
            assert not torch.is_grad_enabled()
        assert torch.get_num_threads() == 1
        assert torch.is_grad_enabled()
    finally:
        torch.set_num_threads(before)
