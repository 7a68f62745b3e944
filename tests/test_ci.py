# SPDX-License-Identifier: BSD-3-Clause
"""CI fails for what tests say, and for those that never end."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# FAILS: the target whose first run fails; NAMES: what pytest then remembers as failed, if anything;
# ALONE: what the run of that test alone ends with.
MAKE = """#!/bin/sh
cache=.pytest_cache/v/cache
echo "$@" >> calls
case "$2" in *--last-failed*) exit "$ALONE";; esac
if [ "$1" = "$FAILS" ]; then
    echo "1 failed, 2 passed"
    [ -z "$NAMES" ] || { mkdir -p $cache; echo "$NAMES" > $cache/lastfailed; }
    exit 2
fi
[ "$1" = slow ] || exit 0
mkdir -p .pytest_cache
{ echo "    2 of a.py"; echo "        b[1]"; echo "        b[2]"; } > .pytest_cache/not_run.txt
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
    defaults = {"FAILS": "", "SAYS": "5 passed", "SLEEPS": "0", "NAMES": "", "ALONE": "0"}
    environment = (
        {n: v for n, v in os.environ.items() if n != "BUDGET"}
        | {"BASE": "b"}
        | defaults
        | settings
        | {"PATH": f"{tree}:{os.environ['PATH']}"}
    )
    return subprocess.run(
        [tree / ".ci" / "run"], env=environment, capture_output=True, text=True, check=False
    )


def calls(tree: Path) -> list[str]:
    return (tree / "calls").read_text().splitlines()


@pytest.mark.parametrize("fails", ["check", "test", "slow"])
def test_what_fails(tmp_path: Path, fails: str) -> None:
    done = ci(tmp_path, FAILS=fails)
    assert done.returncode == 1
    assert ("left out, something failed before them" in done.stdout) == (fails != "slow")


def test_what_passes(tmp_path: Path) -> None:
    done = ci(tmp_path)
    assert done.returncode == 0
    assert "5 passed" in done.stdout and "== passed in" in done.stdout
    assert "== not run: 2 slow tests, each by name in .pytest_cache/not_run.txt" in done.stdout
    assert "make gpu" in done.stdout and "make clients" in done.stdout
    assert calls(tmp_path) == ["check", "test ARGS=", "slow ARGS=--base b --budget 900"]


@pytest.mark.parametrize("fails", ["test", "slow"])
@pytest.mark.parametrize("alone", [0, 2])
def test_what_fails_is_run_again_alone(tmp_path: Path, fails: str, alone: int) -> None:
    names = '{"tests/a.py::test_b": true}'
    done = ci(tmp_path, FAILS=fails, NAMES=names, ALONE=str(alone))
    assert done.returncode == (1 if alone else 0)
    said = '== PASSED ONLY WHEN RUN ALONE, mend them: "tests/a.py::test_b"'
    assert (said in done.stdout) == (not alone)
    again = f"{fails} ARGS=-n 0 --maxfail=1 --last-failed -m 'slow or not slow'"
    assert calls(tmp_path).count(again) == 1


def test_no_slow_tests_on_demand(tmp_path: Path) -> None:
    (tmp_path / ".pytest_cache").mkdir()
    (tmp_path / ".pytest_cache" / "not_run.txt").write_text("        test_of_an_earlier_run\n")
    done = ci(tmp_path, BUDGET="0")
    assert done.returncode == 0 and "left out, BUDGET=0" in done.stdout
    assert "== not run: " not in done.stdout
    assert calls(tmp_path) == ["check", "test ARGS="]


@pytest.mark.parametrize("says", ["...", "1 failed, 2 passed"])
def test_a_test_that_runs_for_ever(tmp_path: Path, says: str) -> None:
    done = ci(tmp_path, SAYS=says, SLEEPS="600", LIMIT="1")
    assert done.returncode == 1
    assert "== make slow: not at its end after 1 s" in done.stdout
