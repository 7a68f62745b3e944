# SPDX-License-Identifier: BSD-3-Clause
"""Each run writes down what each of its tests cost."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import durations, forks
from tests.support.durations import by_folder, costs, folder, read, record, table
from tests.support.schedule import ROOT


@pytest.mark.slow
def test_what_a_test_its_children_and_its_fixtures_cost(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import sys\nfrom pathlib import Path\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.support import durations\n"
        "from tests.support.durations import Durations\n"
        "from tests.support.reports import OneMessage\n"
        "def pytest_configure(config):\n"
        "    config.pluginmanager.register(Durations(Path('cache') / 'durations.jsonl'))\n"
        "    config.pluginmanager.register(OneMessage())\n"
        "    durations.BUDGET = 0.15\n"
        "    durations.MANY = 4\n"
    )
    spin = "import time\nend = time.process_time() + 0.1\nwhile time.process_time() < end: pass\n"
    (tmp_path / "test_a.py").write_text(
        "import subprocess, sys, time, pytest\n"
        f"SPIN = {spin!r}\n"
        "@pytest.fixture\ndef busy():\n    exec(SPIN)\n    yield\n    exec(SPIN)\n"
        "def test_nothing(): time.sleep(0.1)\n"
        "def test_fixture(busy): pass\n"
        "def test_child(): subprocess.run([sys.executable, '-c', SPIN], check=True)\n"
        "@pytest.mark.slow\n"
        "def test_skipped(): pytest.skip('here')\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-n", "1", "test_a.py"]
    alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command += ["-m", "not slow or slow"]
    done = subprocess.run(
        command, cwd=tmp_path, env=alone, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [each.name for each in (tmp_path / "cache").iterdir()] == ["durations.jsonl"]
    assert "3 passed, 1 skipped" in done.stdout
    lines = {line["test"]: line for line in read(tmp_path / "cache" / "durations.jsonl")}
    cost = {name.partition("::")[2]: line["processor"] for name, line in lines.items()}
    assert cost["test_fixture"] >= 0.19 and cost["test_child"] >= 0.09  # a tick is 0.01
    assert lines["test_a.py::test_nothing"]["wall"] >= 0.1
    assert lines["test_a.py::test_skipped"]["outcome"] == "skipped"
    assert lines["test_a.py::test_nothing"]["outcome"] == "passed"
    assert lines["test_a.py::test_nothing"]["worker"] == "gw0"
    assert lines["test_a.py::test_skipped"]["slow"] and not lines["test_a.py::test_child"]["slow"]
    assert lines["(collection)"]["tests"] == 4
    assert len(lines) == 5
    named = done.stdout.partition("above 0.15 s of processor time")[2]
    assert "s  test_a.py::test_fixture" in named and "test_nothing" not in named
    tests = sum(value for name, value in cost.items() if name)
    assert f"processor time of 4 tests: {tests:.0f} s, and " in named
    assert named.rstrip().splitlines()[-2].endswith("the goal of all fast ones is 600")


def test_folders() -> None:
    name = "tests/export/to_onnx/test_write.py::test_a[x/y]"
    assert folder(name, 1) == "export/"
    assert folder(name, 2) == "export/to_onnx/"
    assert folder("tests/test_docs.py::test_a", 2) == "test_docs.py"


def test_table() -> None:
    lines = [
        {"test": "tests/a/test_b.py::test_c", "processor": 1.0},
        {"test": "tests/d/test_e.py::test_f", "processor": 2.0},
        {"test": "tests/a/test_b.py::test_g", "processor": 1.5},
    ]
    assert by_folder(lines, 1) == {"a/": (2.5, 2), "d/": (2.0, 1)}
    assert table(lines, 1, lines[:1])[2:] == [
        "| a/ | 1.0 | 2.5 | 2 |",
        "| d/ | 0.0 | 2.0 | 1 |",
        "| all | 1.0 | 4.5 | 3 |",
    ]


def line(test: str, processor: float, slow: bool = True, outcome: str = "passed") -> dict[str, Any]:
    return {"test": test, "processor": processor, "slow": slow, "outcome": outcome}


def test_costs() -> None:
    """The mean of the cases that passed; what did not run keeps what it had."""
    lines = [
        line("a.py::test_b[1]", 1.0), line("a.py::test_b[2]", 2.0),
        line("a.py::test_fast", 1.0, False), line("a.py::test_c", 9.0, outcome="failed"),
        {"test": "(collection)", "processor": 1.0},
    ]  # fmt: skip
    assert costs(lines, {"z.py::test_z": 3.0, "a.py::test_b": 9.0, "a.py::test_c": 4.0}) == {
        "a.py::test_b": 1.5, "a.py::test_c": 4.0, "z.py::test_z": 3.0,
    }  # fmt: skip


def test_costs_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "costs.json"
    table.write_text('{"tests/test_gone.py::test_a": 1.0, "tests/test_house.py::test_a": 2.0}')
    monkeypatch.setattr(durations, "COSTS", table)
    monkeypatch.chdir(ROOT)
    record([line("tests/test_size.py::test_b", 0.5)])
    assert json.loads(table.read_text()) == {
        "tests/test_house.py::test_a": 2.0, "tests/test_size.py::test_b": 0.5,
    }  # fmt: skip


def test_processes_that_tests_are_forked_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a living process has taken counts at once; a process that is gone has taken nothing."""
    spin = "import time\nwhile time.process_time() < 0.2: pass\nprint(1, flush=True)\ninput()\n"
    command = [sys.executable, "-c", spin]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        before = durations.processor()
        monkeypatch.setattr(forks, "_alive", {child.pid})
        after = durations.processor()
        child.communicate(b"\n")
    if sys.platform == "linux":
        assert after - before >= 0.19  # a tick is 0.01
    assert forks._spent(child.pid) == 0.0
