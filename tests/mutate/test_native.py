# SPDX-License-Identifier: BSD-3-Clause
"""Each bug of native.toml, planted in a copy of the C++, turns its tests red.

All are planted at once, each behind a condition on a number that is read when the library is
loaded: minutes of compiling serve them all, and tests run in forks of one process
(tests/support/forks.py). `emulated`: compiled for amx, with the instructions of the matrix unit in
plain C++. `alone`: planted without a condition, in a library of its own, for tests that look at
what the compiler left in it.
"""

import fcntl
import os
import pathlib
import shutil
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import cmake
import ninja
import pytest

from blockscale.kernels import cpu
from tests.support.forks import FAILED, PASSED, Forks, Outcome
from tests.support.marks import ROOT, MarkError, Place, current_tests, locate

SABOTAGES = tomllib.loads((ROOT / "tests/mutate/native.toml").read_text())["sabotage"]
IDS = [s["name"] for s in SABOTAGES]
SRC = "blockscale/kernels/cpu/src"
COMPILER = os.environ.get("CXX") or shutil.which("c++")
DECLARED = 'extern "C" const int blockscale_bug;  // which of native.toml, from 1; 0: none\n'
DEFINED = f"""#include <cstdlib>
{DECLARED}extern "C" {{
const char* blockscale_chosen = std::getenv("BLOCKSCALE_BUG");
const int blockscale_bug = blockscale_chosen ? std::atoi(blockscale_chosen) : 0;
}}
"""


def with_choice(number: int, code: str, bug: str) -> str:
    """An expression, or statements that end with ';', which are others for one bug's number."""
    if code.endswith(";"):
        return f"if (blockscale_bug == {number}) {{ {bug} }} else {{ {code} }}"
    return f"(blockscale_bug == {number} ? ({bug}) : ({code}))"


def with_choices(places: list[tuple[int, Place, str]]) -> str:
    """A file's text with all of its bugs: the number of each, its place, and what replaces that."""
    places = sorted(places, key=lambda each: each[1].start)
    for (_, before, _), (number, after, _) in pairwise(places):
        if after.start < before.end:
            raise MarkError(f"{IDS[number - 1]!r} overlaps another bug: let both say less code")
    text = places[0][1].text
    for number, place, bug in reversed(places):
        code = text[place.start : place.end]
        text = text[: place.start] + with_choice(number, code, bug) + text[place.end :]
    return DECLARED + text


def place_of(bug: dict[str, Any], root: pathlib.Path = ROOT) -> Place:
    return locate(bug["file"], bug["where"], bug["find"], root)


def plant_all(root: pathlib.Path) -> None:
    """Each bug of the list that is not `alone`, in a copy of the sources."""
    files = defaultdict(list)
    for number, bug in enumerate(SABOTAGES, start=1):
        if not bug.get("alone", False):
            place = place_of(bug, root)
            files[place.path].append((number, place, bug["replace"]))
    for path, places in files.items():
        path.write_text(with_choices(places))
    (root / SRC / "planted.cpp").write_text(DEFINED)


class Copy:
    """A copy of the repository without C++, one of the C++ with all bugs, and libraries of that.

    folder: the same in all processes of a run of tests; whichever first needs something makes it.
    """

    def __init__(self, folder: pathlib.Path):
        self.root, self._sources, self._folder = folder / "copy", folder / "sources", folder
        folder.mkdir(exist_ok=True)

    def library(self, bug: dict[str, Any] | None, emulated: bool) -> pathlib.Path:
        """For few instruction sets, with all bugs, or with one that is `alone`, too."""
        alone = bug is not None and bug.get("alone", False)
        with (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._copy()
            kind = "emulated" if emulated else "baseline"
            if alone:
                place = place_of(bug, self._sources)
                place.path.write_text(place.planted(bug["replace"]))
                try:
                    made = self._made(kind, f"alone {IDS.index(bug['name'])}")
                finally:
                    place.path.write_text(place.text)
            else:
                made = self._made(kind, f"all {kind}")
        return made

    def _copy(self) -> None:
        if (self._folder / "copied").exists():
            return
        ignore = shutil.ignore_patterns("__pycache__", "*.pyc", "*.so", ".*", "src")
        for name in ("attack", "blockscale", "tests"):
            shutil.copytree(ROOT / name, self.root / name, ignore=ignore, dirs_exist_ok=True)
        shutil.copy(ROOT / "pyproject.toml", self.root)
        shutil.copytree(ROOT / SRC, self._sources / SRC, dirs_exist_ok=True)
        shutil.copy(ROOT / "CMakeLists.txt", self._sources)
        plant_all(self._sources)
        (self._folder / "copied").touch()

    def _made(self, kind: str, name: str) -> pathlib.Path:
        """The library, compiled from what the sources are now unless it is there."""
        folder = self._folder / name
        if not folder.exists():
            self._compile(kind)
            (library,) = (self._folder / kind).glob("_native*")
            folder.mkdir()
            shutil.copy(library, folder)
        (library,) = folder.iterdir()
        return library

    def _compile(self, kind: str) -> None:
        program, build = pathlib.Path(cmake.CMAKE_BIN_DIR, "cmake"), self._folder / kind
        settings = (
            f"-DCMAKE_MAKE_PROGRAM={pathlib.Path(ninja.BIN_DIR, 'ninja')}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DBLOCKSCALE_ISAS={'avx512vnni;amx' if kind == 'emulated' else 'baseline'}",
            f"-DBLOCKSCALE_AMX_EMULATED={'ON' if kind == 'emulated' else 'OFF'}",
            "-DBLOCKSCALE_OPTIMIZE=-O1",
        )
        for command in (
            [program, "-S", self._sources, "-B", build, "-G", "Ninja", *settings],
            [program, "--build", build],
        ):
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    if COMPILER is None:
        pytest.skip("this machine has no C++ compiler")
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # a folder of each process below that of all
        folder = folder.parent
    return Copy(folder / "native")


@pytest.fixture(scope="module")
def forks(copy: Copy) -> Iterator[Forks]:
    with Forks(copy.root) as made:
        yield made


def test_the_list_is_up_to_date() -> None:
    assert len(set(IDS)) == len(IDS) >= 47
    for s in SABOTAGES:
        place = place_of(s)
        assert place.planted(s["replace"]) != place.text, s["name"]
        assert current_tests(s["tests"]), s["name"]


def test_a_bug_of_a_number() -> None:
    """Of an expression, and of a statement."""
    text = "int f(int x) {\n  g(x * 2);  // twice\n  return x + 1;\n}\n"
    places = []
    for number, find, bug in ((5, "return x + 1;", "return x;"), (3, "x * 2", "x")):
        start = text.index(find)
        place = Place(pathlib.Path("f.h"), text, start, start + len(find))
        places.append((number, place, bug))
    assert with_choices(places) == (
        DECLARED + "int f(int x) {\n"
        "  g((blockscale_bug == 3 ? (x) : (x * 2)));  // twice\n"
        "  if (blockscale_bug == 5) { return x; } else { return x + 1; }\n}\n"
    )
    with pytest.raises(MarkError, match=r"'.*' overlaps another bug: let both say less code"):
        with_choices([*places, (1, places[1][1], "0")])


def needs(emulated: bool) -> None:
    library = cpu.load()
    if emulated and (isinstance(library, str) or "avx512vnni" not in library.isas()):
        pytest.skip("the emulated matrix unit stands beside AVX-512 VNNI, which is not here")


def outcome(
    tests: list[str], emulated: bool, copy: Copy, forks: Forks, bug: dict[str, Any] | None = None
) -> Outcome:
    """Of tests with a bug; without one, of those that are not slow."""
    needs(emulated)
    number = 1 + IDS.index(bug["name"]) if bug else 0
    environment = {
        "BLOCKSCALE_NATIVE": str(copy.library(bug, emulated)),
        "BLOCKSCALE_BUG": str(number),
    }
    return forks.run_anew(current_tests(tests), environment, None if bug else False)


@pytest.mark.slow
@pytest.mark.parametrize("bug", SABOTAGES, ids=IDS)
def test_a_planted_bug_is_found(bug: dict[str, Any], copy: Copy, forks: Forks) -> None:
    done = outcome(bug["tests"], bug.get("emulated", False), copy, forks, bug)
    assert done.code == FAILED, f"no test of {bug['tests']} finds it\n{done.output}"


@pytest.mark.slow
@pytest.mark.parametrize("emulated", [False, True])
def test_without_a_bug_they_pass(copy: Copy, forks: Forks, emulated: bool) -> None:
    """The same library, where none is chosen."""
    mine = [s["tests"] for s in SABOTAGES if s.get("emulated", False) == emulated]
    tests = sorted({test for names in mine for test in current_tests(names)})
    done = outcome(tests, emulated, copy, forks)
    assert done.code == PASSED, done.output
