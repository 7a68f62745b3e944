# SPDX-License-Identifier: BSD-3-Clause
"""Each bug of the lists, planted in memory in Python or WGSL, turns its tests red.

In a fork of a process that has all of it imported (tests/support/forks.py): nothing on disk
changes, and a bug takes as long as the tests that find it. test_native.py has those of C++.
"""

import ast
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest

from blockscale.kernels.registry import unavailable
from tests.support.forks import FAILED, NO_TESTS, PASSED, TIMED_OUT, Forks
from tests.support.marks import ROOT, current_tests, locate

LISTS = ("sabotages", "checkpoints", "passes", "webgpu")
BUGS = {
    name: tomllib.loads((ROOT / f"tests/mutate/{name}.toml").read_text())["sabotage"]
    for name in LISTS
}
EACH = [pytest.param(bug, id=bug["name"]) for bugs in BUGS.values() for bug in bugs]


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    with Forks() as made:
        yield made


def check_adapter(name: str) -> None:
    if name == "webgpu" and (reason := unavailable("webgpu")):
        pytest.skip(f"BUGS IN WEBGPU KERNELS ARE NOT LOOKED FOR: {reason}")


def test_names_are_unique() -> None:
    names = [bug["name"] for bugs in BUGS.values() for bug in bugs]
    assert len(set(names)) == len(names) >= 368


@pytest.mark.parametrize("name", LISTS)
def test_the_list_is_up_to_date(name: str) -> None:
    """The code that each breaks is there once, and so are its tests."""
    for bug in BUGS[name]:
        place = locate(bug["file"], bug["where"], bug["find"])
        changed = place.planted(bug["replace"])
        assert changed != place.text, bug["name"]
        if place.path.suffix == ".py":
            ast.parse(changed, bug["name"])
        assert current_tests(bug["tests"]), bug["name"]


@pytest.mark.slow
@pytest.mark.parametrize("bug", EACH)
def test_a_planted_bug_is_found(bug: dict[str, Any], forks: Forks) -> None:
    check_adapter("webgpu" if bug in BUGS["webgpu"] else "")
    place = locate(bug["file"], bug["where"], bug["find"])
    changed = place.planted(bug["replace"])
    ended = forks.run(current_tests(bug["tests"]), place.path, changed, bug.get("slow"))
    # Not just any exit: a syntax error or a missing test must not count as found.
    assert ended.code == FAILED, f"no test of {bug['tests']} finds it\n{ended.output}"


@pytest.mark.slow
@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("slow", [False, True])
def test_without_a_bug_they_pass(name: str, slow: bool, forks: Forks) -> None:
    """Twin of the above: red must come from the bug."""
    check_adapter(name)
    bugs = [bug for bug in BUGS[name] if bug.get("slow", False) == slow]
    tests = sorted({test for bug in bugs for test in current_tests(bug["tests"])})
    for file in sorted({test.partition("::")[0] for test in tests}):
        own = [test for test in tests if test.partition("::")[0] == file]
        ended = forks.run(own, slow=slow)
        if ended.code == NO_TESTS and not slow:  # all are slow, and looked for after none failed
            ended = forks.run(own, slow=True)
        assert ended.code == PASSED, f"{file}\n{ended.output}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "where", "find", "replace", "tests"),
    [  # a bug that the test does not see, in a function and in a constant; one that cannot run
        ("rounding.py", "nearest_even", "t.round", "(t + 0.5).floor", "test_infinity_stays"),
        ("arithmetic/philox.py", "_ROUNDS", "= 10", "= 9", "test_infinity_stays"),
        ("rounding.py", "nearest_even", "return t.round()", "return (", "test_by_hand"),
        ("rounding.py", "nearest_even", "t.round", "t.floor", "test_that_is_none"),
    ],
)
def test_what_is_not_found(
    file: str, where: str, find: str, replace: str, tests: str, forks: Forks
) -> None:
    place = locate(f"blockscale/core/{file}", where, find)
    path = f"tests/core/test_rounding.py::{tests}"
    assert forks.run([path], place.path, place.planted(replace)).code != FAILED


@pytest.mark.slow
def test_a_test_that_does_not_end_is_ended(forks: Forks) -> None:
    place = locate("blockscale/core/rounding.py", "nearest_even", "return t.round()")
    changed = place.planted("while True: pass")
    tests = ["tests/core/test_rounding.py::test_by_hand"]
    assert forks.run(tests, place.path, changed, timeout=20).code == TIMED_OUT
