# SPDX-License-Identifier: BSD-3-Clause
"""Each bug of native.toml, planted in a copy of the C++, turns its tests red.

`emulated`: compiled for amx, with the instructions of the matrix unit in plain C++. The copy and
its two builds serve all bugs, each of which compiles what it touches, and the tests run in forks of
one process (tests/support/forks.py).
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from typing import Any

import cmake
import ninja
import pytest

from blockscale.kernels import cpu
from tests.support.forks import FAILED, PASSED, Forks, Outcome
from tests.support.marks import ROOT, current_tests, locate

SABOTAGES = tomllib.loads((ROOT / "tests/mutate/native.toml").read_text())["sabotage"]
IDS = [s["name"] for s in SABOTAGES]
COMPILER = os.environ.get("CXX") or shutil.which("c++")


class Copy:
    """A copy of the repository, and builds of its library for few instruction sets."""

    def __init__(self, folder: pathlib.Path, forks: Forks):
        self.folder, self.forks = folder / "copy", forks
        ignore = shutil.ignore_patterns("__pycache__", "*.pyc", "*.so", ".*")
        for name in ("attack", "blockscale", "tests"):
            shutil.copytree(ROOT / name, self.folder / name, ignore=ignore)
        for name in ("pyproject.toml", "CMakeLists.txt"):
            shutil.copy(ROOT / name, self.folder)
        self.builds = {False: folder / "build", True: folder / "emulated"}

    def compile(self, emulated: bool) -> None:
        program = pathlib.Path(cmake.CMAKE_BIN_DIR, "cmake")
        settings = (
            f"-DCMAKE_MAKE_PROGRAM={pathlib.Path(ninja.BIN_DIR, 'ninja')}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DBLOCKSCALE_ISAS={'avx512vnni;amx' if emulated else 'baseline'}",
            f"-DBLOCKSCALE_AMX_EMULATED={'ON' if emulated else 'OFF'}",
        )
        for command in (
            [program, "-S", self.folder, "-B", self.builds[emulated], "-G", "Ninja", *settings],
            [program, "--build", self.builds[emulated]],
        ):
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr

    def test(self, tests: list[str], emulated: bool, slow: bool | None = None) -> Outcome:
        (library,) = self.builds[emulated].glob("_native*")
        return self.forks.run_anew(tests, {"BLOCKSCALE_NATIVE": str(library)}, slow)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    if COMPILER is None:
        pytest.skip("this machine has no C++ compiler")
    folder = tmp_path_factory.mktemp("native")
    with Forks(folder / "copy") as forks:
        yield Copy(folder, forks)


@pytest.fixture
def broken(bug: dict[str, Any], copy: Copy) -> Iterator[Copy]:
    """The copy with one bug, which is taken out again."""
    place = locate(bug["file"], bug["where"], bug["find"], copy.folder)
    place.path.write_text(place.planted(bug["replace"]))
    yield copy
    place.path.write_text(place.text)


def test_the_list_is_up_to_date() -> None:
    assert len(set(IDS)) == len(IDS) >= 47
    for s in SABOTAGES:
        place = locate(s["file"], s["where"], s["find"])
        assert place.planted(s["replace"]) != place.text, s["name"]
        assert current_tests(s["tests"]), s["name"]


def needs(emulated: bool) -> None:
    library = cpu.load()
    if emulated and (isinstance(library, str) or "avx512vnni" not in library.isas()):
        pytest.skip("the emulated matrix unit stands beside AVX-512 VNNI, which is not here")


@pytest.mark.slow
@pytest.mark.parametrize("bug", SABOTAGES, ids=IDS)
def test_a_planted_bug_is_found(bug: dict[str, Any], broken: Copy) -> None:
    emulated = bug.get("emulated", False)
    needs(emulated)
    broken.compile(emulated)
    done = broken.test(current_tests(bug["tests"]), emulated)
    assert done.code == FAILED, f"no test of {bug['tests']} finds it\n{done.output}"


@pytest.mark.slow
@pytest.mark.parametrize("emulated", [False, True])
def test_without_a_bug_they_pass(copy: Copy, emulated: bool) -> None:
    needs(emulated)
    copy.compile(emulated)
    mine = [s["tests"] for s in SABOTAGES if s.get("emulated", False) == emulated]
    tests = sorted({test for names in mine for test in current_tests(names)})
    done = copy.test(tests, emulated, slow=False)
    assert done.code == PASSED, done.output
