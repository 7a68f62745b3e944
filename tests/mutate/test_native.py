"""Each one-line bug of native.toml, planted in a copy of the C++, turns its tests red.

`emulated`: compiled for amx, with the instructions of the matrix unit in plain C++.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator

import cmake
import ninja
import pytest

from blockscale.kernels import cpu

ROOT = pathlib.Path(__file__).parents[2]
SABOTAGES = tomllib.loads((ROOT / "tests/mutate/native.toml").read_text())["sabotage"]
IDS = [s["name"] for s in SABOTAGES]
FAILED, PASSED = pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.OK
COMPILER = os.environ.get("CXX") or shutil.which("c++")


class Copy:
    """A copy of the repository, and builds of its library for few instruction sets."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder / "copy"
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

    def test(self, tests: list[str], emulated: bool) -> subprocess.CompletedProcess[str]:
        (library,) = self.builds[emulated].glob("_native*")
        environment = {**os.environ, "BLOCKSCALE_NATIVE": str(library)}
        environment.pop("BLOCKSCALE_CPU_ISA", None)
        command = [sys.executable, "-B", "-m", "pytest", "-x", "-p", "no:cacheprovider"]
        command += ["--every-case", *tests]
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=600
        )


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    if COMPILER is None:
        pytest.skip("this machine has no C++ compiler")
    return Copy(tmp_path_factory.mktemp("native"))


@pytest.fixture
def broken(request: pytest.FixtureRequest, copy: Copy) -> Iterator[Copy]:
    """The copy with one bug, which is taken out again."""
    path = copy.folder / request.param["file"]
    text = path.read_text()
    lines = text.splitlines()
    lines[lines.index(request.param["find"])] = request.param["replace"]
    path.write_text("\n".join(lines) + "\n")
    yield copy
    path.write_text(text)


def test_the_list_is_up_to_date() -> None:
    assert len(set(IDS)) == len(IDS)
    for s in SABOTAGES:
        lines = (ROOT / s["file"]).read_text().splitlines()
        assert lines.count(s["find"]) == 1, s["name"]
        assert s["find"] != s["replace"], s["name"]
        assert all((ROOT / test.split("::")[0]).is_file() for test in s["tests"]), s["name"]


def needs(emulated: bool) -> None:
    library = cpu.load()
    if emulated and (isinstance(library, str) or "avx512vnni" not in library.isas()):
        pytest.skip("the emulated matrix unit stands beside AVX-512 VNNI, which is not here")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "tests", "emulated"),
    [(s, s["tests"], s.get("emulated", False)) for s in SABOTAGES],
    indirect=["broken"],
    ids=IDS,
)
def test_a_planted_bug_is_found(broken: Copy, tests: list[str], emulated: bool) -> None:
    needs(emulated)
    broken.compile(emulated)
    done = broken.test(tests, emulated)
    assert done.returncode == FAILED, f"{done.stdout}\n{done.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize("emulated", [False, True])
def test_without_a_bug_they_pass(copy: Copy, emulated: bool) -> None:
    needs(emulated)
    copy.compile(emulated)
    mine = [s["tests"] for s in SABOTAGES if s.get("emulated", False) == emulated]
    done = copy.test(sorted({test for tests in mine for test in tests}), emulated)
    assert done.returncode == PASSED, f"{done.stdout}\n{done.stderr}"
