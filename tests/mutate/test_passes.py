"""Each one-line bug of passes.toml, planted in a graph pass, turns that pass's tests red."""

import pathlib
import tomllib

import pytest

from tests.mutate.test_mutate import ROOT, check_found, check_list, check_passes, copy

BUGS = tomllib.loads((ROOT / "tests/mutate/passes.toml").read_text())["sabotage"]
__all__ = ["copy"]  # a fixture


def test_the_list_is_up_to_date() -> None:
    check_list(BUGS, 12)


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=[bug["name"] for bug in BUGS])
def test_a_planted_bug_is_found(bug: dict, copy: pathlib.Path) -> None:
    check_found(bug, copy)


@pytest.mark.slow
def test_without_a_bug_they_pass(copy: pathlib.Path) -> None:
    check_passes(BUGS, copy)
