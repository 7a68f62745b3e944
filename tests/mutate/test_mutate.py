"""Each one-line bug of sabotages.toml, planted in a copy of the package, turns its tests red."""

import pathlib
import shutil
import subprocess
import sys
import tomllib

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SABOTAGES = tomllib.loads((ROOT / "tests/mutate/sabotages.toml").read_text())["sabotage"]
IDS = [s["name"] for s in SABOTAGES]
FAILED, PASSED = pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.OK


@pytest.fixture
def copy(tmp_path: pathlib.Path) -> pathlib.Path:
    """The package, its tests and pytest's settings, without caches."""
    for folder in ("blockscale", "tests"):
        ignore = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def run(copy: pathlib.Path, tests: list[str]) -> subprocess.CompletedProcess[str]:
    """Pytest on the copy: the current directory comes before any installed package."""
    command = [sys.executable, "-B", "-m", "pytest", "-x", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=600)


def test_the_list_is_up_to_date() -> None:
    """Each line to be broken is there once, and the bug is another line."""
    assert len(set(IDS)) == len(IDS) >= 12
    for s in SABOTAGES:
        lines = (ROOT / s["file"]).read_text().splitlines()
        assert lines.count(s["find"]) == 1, s["name"]
        assert s["find"] != s["replace"], s["name"]
        assert "\n" not in s["find"] + s["replace"], s["name"]
        assert all((ROOT / test.split("::")[0]).is_file() for test in s["tests"]), s["name"]


@pytest.mark.slow
@pytest.mark.parametrize("sabotage", SABOTAGES, ids=IDS)
def test_a_planted_bug_is_found(sabotage: dict, copy: pathlib.Path) -> None:
    path = copy / sabotage["file"]
    lines = path.read_text().splitlines()
    lines[lines.index(sabotage["find"])] = sabotage["replace"]
    path.write_text("\n".join(lines) + "\n")
    done = run(copy, sabotage["tests"])
    # Not just any exit: a syntax error or a missing test must not count as found.
    assert done.returncode == FAILED, f"{sabotage['name']}\n{done.stdout}\n{done.stderr}"


@pytest.mark.slow
def test_without_a_bug_they_pass(copy: pathlib.Path) -> None:
    """Twin of the above: red must come from the bug."""
    done = run(copy, sorted({test for s in SABOTAGES for test in s["tests"]}))
    assert done.returncode == PASSED, f"{done.stdout}\n{done.stderr}"
