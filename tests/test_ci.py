"""CI fails for what tests say, not for tests that it had no time for."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAKE = """#!/bin/sh
[ "$1" = "$FAILS" ] && { echo "1 failed, 2 passed"; exit 1; }
[ "$1" = slow ] || exit 0
echo "$SAYS"
exec sleep $SLEEPS
"""


def ci(tree: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    """`.ci/run` in a tree that has slow tests, with a make that does as the settings say."""
    (tree / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tree / ".ci")
    (tree / "tests").mkdir()
    (tree / "tests" / "test_a.py").write_text("@pytest.mark.slow\n")
    (tree / "make").write_text(MAKE)
    (tree / "make").chmod(0o755)
    given = {"FAILS": "", "SAYS": "5 passed", "SLEEPS": "0"} | settings
    environment = os.environ | given | {"PATH": f"{tree}:{os.environ['PATH']}"}
    return subprocess.run(
        [tree / ".ci" / "run"], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("fails", ["check", "test", "slow"])
def test_what_fails(tmp_path: Path, fails: str) -> None:
    done = ci(tmp_path, FAILS=fails)
    assert done.returncode == 1
    assert ("left out, something failed before it" in done.stdout) == (fails != "slow")


def test_what_passes(tmp_path: Path) -> None:
    done = ci(tmp_path)
    assert done.returncode == 0
    assert "5 passed" in done.stdout and "== passed in" in done.stdout


@pytest.mark.parametrize(
    ("says", "code"), [("...", 0), ("1 failed, 2 passed", 1), ("FAILED tests/a.py::b", 1)]
)
@pytest.mark.parametrize("limit", ["0", "4"])
def test_the_end_of_the_time(tmp_path: Path, limit: str, says: str, code: int) -> None:
    done = ci(tmp_path, SAYS=says, SLEEPS="60", LIMIT=limit)
    assert done.returncode == code
    assert ("cut off for lack of time" in done.stdout) == (code == 0)
    assert "== slow: 6" not in done.stdout  # it did not run to its end
