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
    for folder in ("attack", "blockscale", "tests"):
        ignore = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def run(
    copy: pathlib.Path, tests: list[str], slow: bool = False
) -> subprocess.CompletedProcess[str]:
    """Pytest on the copy: the current directory comes before any installed package."""
    command = [sys.executable, "-B", "-m", "pytest", "-x", "-p", "no:cacheprovider"]
    command += [*(["-m", "slow"] if slow else []), "--every-case", *tests]
    return subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=600)


def check_list(bugs: list[dict], least: int) -> None:
    """Each line to be broken is there once, and the bug is another line."""
    assert len({bug["name"] for bug in bugs}) == len(bugs) >= least
    for bug in bugs:
        lines = (ROOT / bug["file"]).read_text().splitlines()
        assert lines.count(bug["find"]) == 1, bug["name"]
        assert bug["find"] != bug["replace"], bug["name"]
        assert "\n" not in bug["find"] + bug["replace"], bug["name"]
        assert all((ROOT / test.split("::")[0]).is_file() for test in bug["tests"]), bug["name"]


def check_found(bug: dict, copy: pathlib.Path) -> None:
    """Planted in the copy, it turns its tests red."""
    path = copy / bug["file"]
    lines = path.read_text().splitlines()
    lines[lines.index(bug["find"])] = bug["replace"]
    path.write_text("\n".join(lines) + "\n")
    done = run(copy, bug["tests"], bug.get("slow", False))
    # Not just any exit: a syntax error or a missing test must not count as found.
    assert done.returncode == FAILED, f"{bug['name']}\n{done.stdout}\n{done.stderr}"


def check_passes(bugs: list[dict], copy: pathlib.Path) -> None:
    """Twin of the above: red must come from the bug."""
    for slow in (False, True):
        chosen = [bug for bug in bugs if bug.get("slow", False) == slow]
        if chosen:
            done = run(copy, sorted({test for bug in chosen for test in bug["tests"]}), slow)
            assert done.returncode == PASSED, f"{done.stdout}\n{done.stderr}"


def test_the_list_is_up_to_date() -> None:
    check_list(SABOTAGES, 12)


@pytest.mark.slow
@pytest.mark.parametrize("sabotage", SABOTAGES, ids=IDS)
def test_a_planted_bug_is_found(sabotage: dict, copy: pathlib.Path) -> None:
    check_found(sabotage, copy)


@pytest.mark.slow
def test_without_a_bug_they_pass(copy: pathlib.Path) -> None:
    check_passes(SABOTAGES, copy)
