# SPDX-License-Identifier: BSD-3-Clause
"""`bs.hardware`, the library's loader and the choice of instruction set."""

import _ctypes
import json
import os
import re
import sys
import types
from dataclasses import asdict
from functools import cache
from pathlib import Path

import pytest
import torch

import blockscale as bs
from blockscale.core.parse import CATALOG, parse
from blockscale.kernels import cpu
from blockscale.kernels import hardware as module
from blockscale.kernels import hardware as probes
from blockscale.kernels.hardware import OPS, coverage
from blockscale.kernels.registry import (
    KERNELS,
    ByFormats,
    Kernel,
    backends,
    supporting,
    unavailable,
)
from tests.support import fresh

ROOT = Path(__file__).parents[2]
LIBRARY = "" if isinstance(cpu.load(), str) else str(cpu.load().__file__)
needs_library = pytest.mark.skipif(isinstance(cpu.load(), str), reason=str(cpu.load()))


HARDWARE = """
import blockscale as bs
h = bs.hardware()
print(h.backends["cpu"], h.native.used, h.native.openmp, *h.openmp)
"""


@cache
def on_the_slowest() -> list[str]:
    """What a process that is given the slowest instruction set says of the library."""
    environment = {**os.environ, "BLOCKSCALE_CPU_ISA": cpu.load().isas()[0]}
    how = {"env": environment, "cwd": ROOT, "ready": fresh.WITH_OURS}
    return fresh.run(HARDWARE, check=True, **how).stdout.split()


def test_this_machine() -> None:
    found = bs.hardware()
    assert (found.blockscale, found.torch) == (bs.__version__, torch.__version__)
    assert found.python == sys.version.split()[0]
    assert found.threads == torch.get_num_threads()
    assert 1 <= found.cores <= (os.cpu_count() or 1)
    assert found.processor
    assert found.memory is None or found.memory > 2**28
    assert found.backends == {name: unavailable(name) for name in backends()}
    assert len(found.devices) == torch.cuda.device_count()
    assert json.loads(json.dumps(asdict(found)))["backends"] == found.backends
    with pytest.raises(AttributeError, match="cannot assign"):
        found.cores = 3


@needs_library
def test_the_library() -> None:
    native = bs.hardware().native
    assert isinstance(native, probes.Native)
    assert Path(native.path).name.startswith("_native.")
    assert re.fullmatch(r"\S+ \d+(\.\d+)+", native.compiler)
    assert "-ffp-contract=off" in native.flags
    assert "-march" not in native.flags
    assert native.used in native.present
    assert set(native.present) <= set(native.isas)
    assert native.present[0] == native.isas[0], "the slowest runs everywhere"


@needs_library
def test_the_processor_has_what_is_said_to_be_present() -> None:
    info = Path("/proc/cpuinfo")
    if not info.exists() or "\nflags" not in info.read_text():
        pytest.skip("this system does not list its processor's instructions")
    flags = set(re.search(r"^flags\s*:(.*)$", info.read_text(), re.MULTILINE)[1].split())
    wide = {"avx2", "fma", "f16c"}
    widest = wide | {"avx512f", "avx512bw", "avx512vl", "avx512dq"}
    needs = {
        "baseline": set(),
        "avx2": wide,
        "avx512": widest,
        "avx512vnni": widest | {"avx512_vnni"},
        "amx": widest | {"avx512_vnni", "amx_tile", "amx_int8", "amx_bf16"},
    }
    native = bs.hardware().native
    assert [name for name in native.isas if needs[name] <= flags] == list(native.present)


@pytest.mark.slow
@needs_library
@pytest.mark.skipif(
    not Path(torch.__file__).with_name("lib").joinpath("libgomp.so.1").exists(),
    reason="this torch brings another OpenMP library than the compiler's",
)
def test_one_openmp_library() -> None:
    """Torch's: two would each have a thread for every core."""
    openmp, *libraries = on_the_slowest()[2:]
    assert openmp == "True"
    assert libraries == [str(Path(torch.__file__).with_name("lib") / "libgomp.so.1")]


def test_nothing_native_is_loaded_by_import() -> None:
    script = "import blockscale, sys; print('blockscale.kernels.cpu._native' in sys.modules)"
    assert fresh.run(script, cwd=ROOT, check=True).stdout == "False\n"


ASK = """
import blockscale as bs, torch
print(bs.hardware().backends["cpu"], bs.hardware().native.used)
bs.quantize(torch.ones(2, 32), "mxfp4")
"""


@pytest.mark.slow
@needs_library
def test_an_instruction_set_that_is_not_there() -> None:
    """Known elsewhere or nowhere: an error that says what there is, at the first op."""
    present = ", ".join(cpu.load().isas())
    error = (
        f"no instruction set 'avx9' here: this library was not compiled for it; there are {present}"
    )
    environment = {**os.environ, "BLOCKSCALE_CPU_ISA": "avx9"}
    done = fresh.run(ASK, env=environment, cwd=ROOT, ready=fresh.WITH_OURS)
    assert done.stderr.splitlines()[-1] == f"ValueError: BLOCKSCALE_CPU_ISA: {error}"
    assert done.stdout.endswith(f"there are {present} None\n")
    before = cpu.load().isa()
    with pytest.raises(ValueError, match="select_isa: no instruction set 'mmx' here"):
        cpu.load().select_isa("mmx")
    assert cpu.load().isa() == before


@needs_library
def test_an_instruction_set_by_name() -> None:
    assert on_the_slowest()[:2] == ["None", cpu.load().isas()[0]]


def test_a_library_for_another_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled for one instruction set alone, which is not here: a reason, and the reference."""
    library = types.SimpleNamespace(isas=list, compiled_isas=lambda: ["amx"])
    monkeypatch.setattr(cpu, "load", lambda: library)
    reason = cpu.available()
    assert reason is not None
    assert reason.startswith("the native library was compiled only for amx, which this processor")
    assert "make native" in reason and "BLOCKSCALE_ISA=all" in reason


@needs_library
def test_a_library_of_other_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    library = cpu.load()
    monkeypatch.setitem(vars(cpu), "_native", library)
    monkeypatch.setattr(cpu, "load", cpu.load.__wrapped__)
    monkeypatch.setattr(cpu, "_sources", lambda: "another digest")
    monkeypatch.setenv("BLOCKSCALE_NATIVE", "")
    assert cpu.available().endswith("beside it: run `make native`")
    with pytest.raises(ImportError, match=r"not compiled from the C\+\+ sources beside it"):
        from blockscale.kernels.cpu import _native  # noqa: F401
    monkeypatch.setattr(cpu, "_sources", lambda: None)  # an installed wheel has no sources
    assert cpu.load() is library


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The loader as in a fresh Python, for a package in an empty folder."""
    monkeypatch.setattr(cpu, "_FOLDER", tmp_path)
    monkeypatch.setattr(cpu, "load", cpu.load.__wrapped__)
    monkeypatch.delitem(sys.modules, "blockscale.kernels.cpu._native", raising=False)
    monkeypatch.delitem(vars(cpu), "_native", raising=False)
    monkeypatch.delenv("BLOCKSCALE_NATIVE", raising=False)
    monkeypatch.setattr(cpu, "__path__", [str(tmp_path)])
    return tmp_path


def test_no_library(unloaded: Path) -> None:
    remedy = "install blockscale again with `pip install -v`, which shows why"
    assert cpu.load() == cpu.available() == f"the native library was not built: {remedy}"
    with pytest.raises(ImportError, match="was not built"):
        from blockscale.kernels.cpu import _native  # noqa: F401
    (unloaded / "_unbuilt.txt").write_text("the moon is wrong; wait\n")
    why = "the native library was not built: the moon is wrong; wait and install blockscale again"
    assert cpu.available() == bs.kernels.hardware._native() == why


def test_a_library_that_does_not_load(unloaded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = unloaded / "_native.abi3.so"
    broken.write_bytes(b"\x7fELF")
    assert cpu.load().startswith(f"the native library cannot be loaded: {broken}: ")
    monkeypatch.setenv("BLOCKSCALE_NATIVE", str(unloaded / "mine.so"))
    assert cpu.load().startswith(f"the native library cannot be loaded: {unloaded}/mine.so: ")
    monkeypatch.setenv("BLOCKSCALE_NATIVE", str(unloaded / "mine.txt"))
    assert cpu.load().endswith(
        f"BLOCKSCALE_NATIVE='{unloaded}/mine.txt' is not a Python extension module"
    )


@needs_library
def test_only_libraries_of_these_sources_are_run(
    unloaded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python files were run, and every other extension module."""
    ran = unloaded / "ran"
    script, module = unloaded / "mine.py", unloaded / "mine.so"
    script.write_text(f"open({str(ran)!r}, 'w')")
    monkeypatch.setenv("BLOCKSCALE_NATIVE", str(script))
    assert cpu.load().endswith(f"BLOCKSCALE_NATIVE='{script}' is not a Python extension module")
    assert not ran.exists()
    module.symlink_to(_ctypes.__file__)
    monkeypatch.setenv("BLOCKSCALE_NATIVE", str(module))
    assert f"{module}: it was not compiled from the C++ sources" in cpu.load()
    monkeypatch.setattr(cpu, "_sources", lambda: "another digest")
    monkeypatch.setenv("BLOCKSCALE_NATIVE", LIBRARY)
    assert f"{LIBRARY}: it was not compiled from the C++ sources" in cpu.load()
    os.mkfifo(unloaded / "pipe.so")
    monkeypatch.setenv("BLOCKSCALE_NATIVE", str(unloaded / "pipe.so"))
    assert "is not a regular file" in cpu.load()
    assert cpu._NAME not in sys.modules


@pytest.mark.skipif(unavailable("cpu") is not None, reason=str(unavailable("cpu")))
def test_the_cpu():
    found = coverage("cpu")
    assert tuple(each.op for each in found) == OPS
    for each in found:
        assert {*each.runs, *each.by_call, *each.reference} == set(CATALOG)
        for name in each.runs:
            assert supporting(each.op, "cpu", (str(parse(name)),), ()) is not None
        for name in each.reference:
            assert supporting(each.op, "cpu", (str(parse(name)),), ()) is None


def test_reasons(monkeypatch):
    plain = Kernel("quantize", "cpu", ByFormats(lambda formats: formats[0].bits == 4), print)
    asks = Kernel("linear", "cpu", lambda formats, arguments: False, print)
    monkeypatch.setattr(module, "unavailable", lambda backend: None)
    kernels = {("quantize", "cpu"): [plain], ("linear", "cpu"): [asks]}
    monkeypatch.setattr(module, "KERNELS", kernels)
    found = {each.op: each for each in coverage("cpu")}
    assert "mxfp4" in found["quantize"].runs
    told = found["quantize"].reference
    assert told["mxfp8"] == "no cpu kernel of quantize takes its elements"
    assert set(found["linear"].by_call) == set(CATALOG)
    assert set(found["conv"].reference.values()) == {"no cpu kernel computes conv"}
    assert KERNELS is not kernels


def test_a_backend_that_cannot_run():
    assert coverage("no such backend") == ()
