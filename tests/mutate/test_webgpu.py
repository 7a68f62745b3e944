"""Each one-line bug of webgpu.toml, planted in a copy of the package, turns its tests red."""

import pathlib
import tomllib

import pytest

from tests.mutate.test_mutate import ROOT, check_found, check_list, check_passes, copy

BUGS = tomllib.loads((ROOT / "tests/mutate/webgpu.toml").read_text())["sabotage"]
__all__ = ["copy"]  # a fixture


def test_the_list_is_up_to_date() -> None:
    check_list(BUGS, 8)


@pytest.fixture
def adapter() -> None:
    from blockscale.kernels.registry import unavailable

    if reason := unavailable("webgpu"):
        pytest.skip(f"BUGS IN WEBGPU KERNELS ARE NOT LOOKED FOR: {reason}")


@pytest.mark.slow
@pytest.mark.usefixtures("adapter")
@pytest.mark.parametrize("bug", BUGS, ids=[bug["name"] for bug in BUGS])
def test_a_planted_bug_is_found(bug: dict, copy: pathlib.Path) -> None:
    check_found(bug, copy)


@pytest.mark.slow
@pytest.mark.usefixtures("adapter")
def test_without_a_bug_they_pass(copy: pathlib.Path) -> None:
    check_passes(BUGS, copy)
