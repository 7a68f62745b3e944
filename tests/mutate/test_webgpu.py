"""Each one-line bug of webgpu.toml, planted in a copy of the package, turns its tests red."""

import pathlib
import tomllib

import pytest

from tests.mutate.test_mutate import FAILED, PASSED, ROOT, copy, run

BUGS = tomllib.loads((ROOT / "tests/mutate/webgpu.toml").read_text())["sabotage"]
__all__ = ["copy"]  # a fixture


def test_the_list_is_up_to_date() -> None:
    """Each line to be broken is there once, and the bug is another line."""
    assert len({bug["name"] for bug in BUGS}) == len(BUGS) >= 8
    for bug in BUGS:
        lines = (ROOT / bug["file"]).read_text().splitlines()
        assert lines.count(bug["find"]) == 1, bug["name"]
        assert bug["find"] != bug["replace"] and "\n" not in bug["find"] + bug["replace"]
        assert all((ROOT / test.split("::")[0]).is_file() for test in bug["tests"]), bug["name"]


@pytest.fixture
def adapter() -> None:
    from blockscale.kernels.registry import unavailable

    if reason := unavailable("webgpu"):
        pytest.skip(f"BUGS IN WEBGPU KERNELS ARE NOT LOOKED FOR: {reason}")


@pytest.mark.slow
@pytest.mark.usefixtures("adapter")
@pytest.mark.parametrize("bug", BUGS, ids=[bug["name"] for bug in BUGS])
def test_a_planted_bug_is_found(bug: dict, copy: pathlib.Path) -> None:
    path = copy / bug["file"]
    path.write_text(path.read_text().replace(bug["find"] + "\n", bug["replace"] + "\n"))
    done = run(copy, bug["tests"])
    assert done.returncode == FAILED, f"{bug['name']}\n{done.stdout}\n{done.stderr}"


@pytest.mark.slow
@pytest.mark.usefixtures("adapter")
def test_without_a_bug_they_pass(copy: pathlib.Path) -> None:
    done = run(copy, sorted({test for bug in BUGS for test in bug["tests"]}))
    assert done.returncode == PASSED, f"{done.stdout}\n{done.stderr}"
