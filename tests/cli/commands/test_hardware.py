"""`blockscale hardware`, on this machine and on others."""

import json
from dataclasses import asdict, replace

import pytest
import torch
from typer.testing import CliRunner

import blockscale as bs
from blockscale.cli.app import app
from blockscale.kernels.hardware import Device, Native

LIBRARY = Native(
    path="/here/_native.so",
    compiler="GNU 12.2.0",
    flags="-O3",
    openmp=True,
    isas=("baseline", "avx2", "avx512"),
    present=("baseline", "avx2"),
    used="avx2",
    stale=False,
)


def run(*args: str) -> str:
    result = CliRunner().invoke(app, ["hardware", *args])
    assert result.exit_code == 0, result.output
    return result.stdout


def lines(monkeypatch: pytest.MonkeyPatch, **other: object) -> dict[str, str]:
    """What the command says of a machine that differs from this one, by first word."""
    found = replace(bs.hardware(), **other)
    monkeypatch.setattr(bs, "hardware", lambda: found)
    facts, _, table = run().partition("\n\n")
    names = [line.split("  ")[0] for line in facts.splitlines()]
    return {
        name: line.removeprefix(name).strip()
        for name, line in zip(names, facts.splitlines(), strict=True)
    } | {
        f"{line.split()[0]} kernels": line.partition(" ")[2].strip() for line in table.splitlines()
    }


def test_this_machine() -> None:
    found = bs.hardware()
    assert json.loads(run("--json")) == json.loads(json.dumps(asdict(found)))
    text = run()
    for fact in (bs.__version__, torch.__version__, found.processor, found.system):
        assert fact in text
    for name, reason in found.backends.items():
        assert f"\n{name.ljust(7)}  {reason or 'runs'}\n" in text


def test_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    text = lines(monkeypatch, native=LIBRARY, cores=4, threads=3, memory=2**34)
    assert text["native library"] == "/here/_native.so"
    assert text["compiled by"] == "GNU 12.2.0 -O3"
    assert text["instruction sets"] == "baseline, avx2 (in use), avx512 (not in this processor)"
    assert text["cores"] == "4; threads of torch and of kernels: 3"
    assert text["memory"] == "17.2 GB"


def test_a_library_with_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    library = replace(LIBRARY, openmp=False, stale=True, used=None)
    text = lines(monkeypatch, native=library, openmp=(), memory=None)
    assert text["native library"] == (
        "/here/_native.so; its C++ sources have changed since; "
        "compiled without OpenMP, so kernels have one thread"
    )
    assert text["instruction sets"] == "baseline, avx2, avx512 (not in this processor)"
    assert (text["OpenMP"], text["memory"]) == ("none loaded", "unknown")


def test_no_library_and_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    text = lines(
        monkeypatch,
        native="it was not built: wait",
        backends={"cpu": "it was not built: wait", "cuda": None},
        devices=(Device("NVIDIA H100", 85_000_000_000, "9.0"),),
    )
    assert text["native library"] == "none; the table says why"
    assert "compiled by" not in text
    assert text["cuda:0"] == "NVIDIA H100, 85.0 GB, compute capability 9.0"
    assert text["cpu kernels"] == "it was not built: wait"
    assert text["cuda kernels"] == "runs"
