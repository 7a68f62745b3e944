# SPDX-License-Identifier: BSD-3-Clause
"""What changed is tested first, and what has no time is named."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.schedule import ROOT, changed_since, rank, room

CHANGED = {"blockscale/export/to_onnx/write.py", "tests/kernels/cpu/test_linear.py", "README.md"}


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("tests/export/to_onnx/test_write.py", 0),  # of a file that changed
        ("tests/kernels/cpu/test_linear.py", 0),  # changed itself
        ("tests/export/test_audit.py", 1),  # the same room
        ("tests/kernels/cpu/test_native.py", 1),
        ("tests/kernels/cuda/test_linear.py", 2),  # another backend
        ("tests/test_docs.py", 2),
        ("tests/core/test_block.py", 2),
    ],
)
def test_rank(test: str, expected: int) -> None:
    assert rank(test, CHANGED) == expected


def test_bugs_of_files_that_changed_come_first_the_others_last() -> None:
    bug = {"name": "a", "replace": "b", "tests": []}
    there = [bug | {"file": "blockscale/export/to_onnx/write.py"}]
    assert rank("tests/mutate/test_mutate.py", CHANGED, there) == 0
    elsewhere = [bug | {"file": "blockscale/core/format.py"}]
    assert rank("tests/mutate/test_mutate.py", CHANGED, elsewhere) == 3


def test_rooms() -> None:
    assert room("blockscale/kernels/cpu/src/isa/simd/x.h") == "kernels/cpu"
    assert room("blockscale/core/format.py") == room("tests/core/test_format.py") == "core"
    assert room("README.md") == ""


def test_a_commit_that_is_none() -> None:
    with pytest.raises(pytest.UsageError, match="--first nowhere: git says"):
        changed_since("nowhere")


def test_what_has_no_time_is_skipped_and_named(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.support.schedule import Clock, left_out\n"
        "def pytest_configure(config):\n    config.pluginmanager.register(Clock(0.0))\n"
        "def pytest_terminal_summary(terminalreporter):\n"
        "    print(left_out(terminalreporter.stats.get('skipped', [])))\n"
    )
    (tmp_path / "test_a.py").write_text("def test_b(): pass\ndef test_c(): pass\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", tmp_path]
    alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [*command, tmp_path], env=alone, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 skipped" in done.stdout and "['    2 of test_a.py']" in done.stdout
