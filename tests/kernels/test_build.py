# SPDX-License-Identifier: BSD-3-Clause
"""The build: what is in wheels and sdists, and installs where something is missing say what."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import cmake
import ninja
import pytest
from scikit_build_core import build as backend

from blockscale.kernels.cpu import load
from blockscale.kernels.registry import unavailable
from tests.support import fresh

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    p.relative_to(ROOT).as_posix() for p in ROOT.glob("blockscale/kernels/cpu/src/**/*.*")
)
CMAKE = Path(cmake.CMAKE_BIN_DIR, "cmake")
NINJA = Path(ninja.BIN_DIR, "ninja")
NO_COMPILER = {"CXX": "/nonexistent/c++"}
COMPILER = os.environ.get("CXX") or shutil.which("c++")
CLANGS = ("clang++", *(f"clang++-{version}" for version in range(14, 23)))
CLANG = next(filter(None, map(shutil.which, CLANGS)), None)

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="this machine has no C++ compiler")


def run(*command: object, env: dict[str, str] | None = None, cwd: Path = ROOT) -> str:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("BLOCKSCALE_")}
    done = subprocess.run(
        [str(part) for part in command],
        env=inherited | (env or {}),
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def left_out(build: Path, *options: str, env: dict[str, str] | None = None) -> str:
    """Configure and install; the reason why the library was left out."""
    python = f"-DPython_EXECUTABLE={sys.executable}"
    settings = ("-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={NINJA}", python, *options)
    output = run(CMAKE, "-S", ROOT, "-B", build, *settings, env=env)
    run(CMAKE, "--install", build, "--prefix", build / "installed")
    reason = (build / "installed/blockscale/kernels/cpu/_unbuilt.txt").read_text().strip()
    # CMake breaks the warning's lines.
    assert f"without its native library: {reason}" in " ".join(output.split())
    return reason


def pip_wheel(out: Path, tree: Path = ROOT, env: dict[str, str] | None = None) -> Path:
    """What `pip wheel` makes of a tree without network and isolation."""
    command = (sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "--no-build-isolation")
    run(*command, "--no-index", "--wheel-dir", out, tree, env=env)
    (wheel,) = out.glob("*.whl")
    return wheel


def install(wheel: Path, folder: Path) -> set[str]:
    """Unpack a wheel; what it has."""
    with zipfile.ZipFile(wheel) as file:
        file.extractall(folder)
        return set(file.namelist())


def python(folder: Path, script: str, **env: str) -> str:
    """Run a script with the blockscale that lies in a folder."""
    return run(sys.executable, "-c", script, env={"PYTHONPATH": str(folder), **env}, cwd=folder)


def test_here_it_is_built() -> None:
    """Without a compiler this one fails, and the tests of the native kernels are left out."""
    assert unavailable("cpu") is None


def test_no_compiler(tmp_path: Path) -> None:
    assert left_out(tmp_path, env=NO_COMPILER) == UNBUILT
    if COMPILER:  # installed later: nothing of the first try is remembered
        run(CMAKE, tmp_path)
        assert (tmp_path / "generated/build.h").exists()


@needs_compiler
@pytest.mark.slow
def test_an_old_compiler_and_then_a_newer_one(tmp_path: Path) -> None:
    compiler = tmp_path / "old c++"
    refuse = 'for each; do case "$each" in -std=*20) exit 1;; esac; done'
    compiler.write_text(f'#!/bin/sh\n{refuse}\nexec {COMPILER} "$@"\n')
    compiler.chmod(0o755)
    reason = left_out(tmp_path / "build", env={"CXX": f'"{compiler}"'})
    assert reason.startswith("the compiler ")
    assert f"({compiler}) lacks parts of C++20 or GCC's builtins; install GCC 11" in reason
    compiler.write_text(f'#!/bin/sh\nexec {COMPILER} "$@"\n')
    run(CMAKE, tmp_path / "build")
    assert (tmp_path / "build/generated/build.h").exists()


@pytest.mark.slow
@needs_compiler
def test_no_headers(tmp_path: Path) -> None:
    reason = left_out(tmp_path, "-DPython_INCLUDE_DIR=/nonexistent")
    assert reason.startswith(f"the C headers of Python {sys.version_info.major}.")
    assert reason.endswith("are missing; install them (Debian: apt install python3-dev)")


@needs_compiler
@pytest.mark.slow
def test_no_nanobind(tmp_path: Path) -> None:
    (tmp_path / "nanobind").mkdir()
    (tmp_path / "nanobind/__init__.py").write_text("raise ImportError\n")
    reason = left_out(tmp_path / "build", env={"PYTHONPATH": str(tmp_path)})
    assert reason == "the Python package nanobind is missing; install it"


WITHOUT = """
import json, warnings
from dataclasses import asdict
import torch
import blockscale as bs
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    bs.quantize(torch.ones(2, 32), "mxfp4").dequantize()
    bs.quantize(torch.ones(2, 32), "int8_token")
print(json.dumps([asdict(bs.hardware()), [str(w.message) for w in caught]]))
"""


UNBUILT = "there is no working C++ compiler; install GCC 11, Clang 14 or later"


def says_why(shown: str) -> None:
    """Whether what WITHOUT printed is that of a package for which there was no compiler."""
    hardware, warned = json.loads(shown)
    reason = f"the native library was not built: {UNBUILT} and install blockscale again"
    assert hardware["native"] == hardware["backends"]["cpu"] == reason
    assert warned == [f"the slow reference runs instead of cpu kernels: {reason}"]


@pytest.mark.slow
def test_a_package_without_its_library(tmp_path: Path) -> None:
    """It works, warns once and says why."""
    ignored = shutil.ignore_patterns("src", "*.so")
    package = shutil.copytree(ROOT / "blockscale", tmp_path / "blockscale", ignore=ignored)
    (package / "kernels/cpu/_unbuilt.txt").write_text(f"{UNBUILT}\n")
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{WITHOUT}"
    env = {k: v for k, v in os.environ.items() if not k.startswith("BLOCKSCALE_")}
    says_why(fresh.run(script, env=env, cwd=tmp_path, check=True).stdout)


@pytest.mark.slow
def test_an_install_without_compiler(tmp_path: Path) -> None:
    files = install(pip_wheel(tmp_path / "out", env=NO_COMPILER), tmp_path / "installed")
    assert not [name for name in files if name.endswith((".so", ".cpp", ".h"))]
    assert "blockscale/kernels/cpu/_unbuilt.txt" in files
    says_why(python(tmp_path / "installed", WITHOUT))


@pytest.mark.slow
def test_the_sdist_has_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    with tarfile.open(tmp_path / backend.build_sdist(str(tmp_path))) as file:
        files = {name.partition("/")[2] for name in file.getnames()}
    assert {"CMakeLists.txt", "pyproject.toml", *SOURCES} <= files
    assert not [name for name in files if name.endswith(".so")]


NATIVE = """
from blockscale.kernels.cpu import available, load, stale
print(available(), stale(load()), load().build()["openmp"], load().__file__)
"""


SAME = """
import torch, blockscale as bs
x = torch.randn(64, 256)
with bs.use("reference"):
    expected = bs.fake_quantize(x, "nvfp4")
print(torch.equal(bs.fake_quantize(x, "nvfp4"), expected))
"""


@needs_compiler
@pytest.mark.slow
def test_a_wheel_has_the_library(tmp_path: Path) -> None:
    """Here of one instruction set, little optimized: `make native`, which made the library that
    all tests take, compiles and optimizes every one."""
    env = {"CMAKE_ARGS": "-DBLOCKSCALE_ISA=native -DBLOCKSCALE_OPTIMIZE=-O1"}
    files = install(pip_wheel(tmp_path / "out", env=env), tmp_path / "installed")
    assert len([name for name in files if name.startswith("blockscale/kernels/cpu/_native.")]) == 1
    assert not [name for name in files if name.endswith((".cpp", ".h", "_unbuilt.txt"))]
    words = python(tmp_path / "installed", NATIVE).split()
    assert words[:2] == ["None", "False"]
    assert words[3].startswith(str(tmp_path))


@needs_compiler
@pytest.mark.slow
def test_a_build_without_openmp(tmp_path: Path) -> None:
    """It computes on one thread; for this processor alone."""
    options = "-DCMAKE_DISABLE_FIND_PACKAGE_OpenMP=ON -DBLOCKSCALE_ISA=native"
    env = {"CMAKE_ARGS": f"{options} -DBLOCKSCALE_OPTIMIZE=-O1"}
    install(pip_wheel(tmp_path / "out", env=env), tmp_path / "installed")
    assert python(tmp_path / "installed", NATIVE).split()[:3] == ["None", "False", "False"]
    assert python(tmp_path / "installed", SAME) == "True\n"
    command = "import sys; sys.argv[1:] = ['hardware']; from blockscale.cli import main; main()"
    text = python(tmp_path / "installed", command)
    assert "compiled without OpenMP, so kernels have one thread" in text


def configure(build: Path, wish: str | None) -> subprocess.CompletedProcess[str]:
    """Of the library for some instruction sets; nothing is compiled."""
    options = (f"-DPython_EXECUTABLE={sys.executable}", f"-DCMAKE_MAKE_PROGRAM={NINJA}")
    command = (CMAKE, "-S", ROOT, "-B", build, "-G", "Ninja", *options)
    asked = [*map(str, command), *([f"-DBLOCKSCALE_ISA={wish}"] if wish else [])]
    return subprocess.run(asked, capture_output=True, text=True)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("wish", ["native", "all", None])
def test_for_this_processor_alone(tmp_path: Path, wish: str | None) -> None:
    """The last instruction set that runs here, and no other; all where nothing is asked for, as
    wheels and sdists are built."""
    library = load()
    present = None if isinstance(library, str) else set(library.isas()[-1:])
    done = configure(tmp_path, wish)
    assert done.returncode == 0, done.stdout + done.stderr
    rules = (tmp_path / "build.ninja").read_text()
    sets = set(re.findall(r"^build libkernels_(\w+)\.a:", rules, re.MULTILINE))
    if wish == "native":
        assert len(sets) == 1 and present in (None, sets)
    else:
        assert len(sets) > 1


@needs_compiler
@pytest.mark.slow
def test_instruction_sets_that_cannot_be_asked_for(tmp_path: Path) -> None:
    assert "BLOCKSCALE_ISA is 'mine'; expected all or native" in configure(tmp_path, "mine").stderr


@needs_compiler
@pytest.mark.slow
def test_sources_that_do_not_compile(tmp_path: Path) -> None:
    """A user gets the Python alone; an editable install, which is for developers, fails."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE", "NOTICE.md"):
        shutil.copy(ROOT / name, tree)
    shutil.copytree(
        ROOT / "blockscale", tree / "blockscale", ignore=shutil.ignore_patterns("src", "*.so")
    )
    for name in ("isa/linear/broken.cpp", "broken.cpp"):
        source = tree / "blockscale/kernels/cpu/src" / name
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text("#error this compiler is too old\n")
    for name in ("processor.cpp", "processor.h"):  # an editable install asks what runs here
        shutil.copy(ROOT / "blockscale/kernels/cpu/src" / name, source.parent)
    env = {"CMAKE_ARGS": "-DBLOCKSCALE_ISA=native -DBLOCKSCALE_OPTIMIZE=-O0"}
    wheel = pip_wheel(tmp_path / "out", tree, env)
    assert wheel.name.endswith("-py3-none-any.whl")
    install(wheel, tmp_path / "installed")
    hardware, warned = json.loads(python(tmp_path / "installed", WITHOUT))
    assert hardware["native"].endswith(
        "install blockscale again with `pip install -v`, which shows why"
    )
    assert len(warned) == 1
    editable = (
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--editable",
    )
    with pytest.raises(AssertionError, match="this compiler is too old"):
        run(sys.executable, *editable, tree, "--target", tmp_path / "target", env=env)


def test_wheels_are_not_built_by_clang(tmp_path: Path) -> None:
    """Whose OpenMP library would be a second one beside torch's."""
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho 'Debian clang version 16.0.6'\n")
    compiler.chmod(0o755)
    done = subprocess.run(
        ["bash", ROOT / "requirements/wheel.sh", sys.executable, tmp_path / "dist"],
        env=os.environ | {"CXX": str(compiler)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1 and not (tmp_path / "dist").exists()
    assert "is Clang, whose OpenMP would be a second one beside torch's" in done.stderr
    assert "make wheel CXX=g++" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(CLANG is None, reason="this machine has no Clang: apt install clang-14")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the flags are those of x86-64")
def test_clang_compiles_every_instruction_set(tmp_path: Path) -> None:
    """Up to AMX: for long it refused what GCC took, and installs had no library."""
    flags = "-mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c -mavx512vnni"
    flags += " -mamx-tile -mamx-int8 -mamx-bf16 -std=c++20 -fsyntax-only -DBLOCKSCALE_ISA=amx"
    for source in sorted(ROOT.glob("blockscale/kernels/cpu/src/isa/*/*.cpp")):
        run(CLANG, *flags.split(), "-I", source.parents[2], source, cwd=tmp_path)
