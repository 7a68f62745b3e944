# SPDX-License-Identifier: BSD-3-Clause
"""`blockscale hardware`, on this machine and on others."""

import json
from dataclasses import asdict, replace

import pytest
import torch
from typer.testing import CliRunner

import blockscale as bs
from blockscale.cli.app import app
from blockscale.kernels.hardware import Device, KernelCoverage, Native
from blockscale.kernels.processor import Cache
from blockscale.kernels.rates import Rates

LIBRARY = Native(
    path="/here/_native.so",
    compiler="GNU 12.2.0",
    flags="-O3",
    openmp=True,
    isas=("baseline", "avx2", "avx512"),
    present=("baseline", "avx2"),
    used="avx2",
    stale=False,
    lacking={"avx512": "this processor does not have it"},
)


def run(*args: str) -> str:
    result = CliRunner().invoke(app, ["hardware", *args])
    assert result.exit_code == 0, result.output
    return result.stdout


def lines(monkeypatch: pytest.MonkeyPatch, **other: object) -> dict[str, str]:
    """What the command says of a machine that differs from this one, by first word."""
    found = replace(bs.hardware(), **other)
    monkeypatch.setattr(bs, "hardware", lambda measure=False: found)
    facts, table, *_ = [*run().split("\n\n"), ""]
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
    assert (
        text["instruction sets"]
        == "baseline, avx2 (in use), avx512 (this processor does not have it)"
    )
    assert text["cores"] == "4; threads of torch and of kernels: 3"
    assert text["memory"] == "17.2 GB"


def test_a_library_with_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    library = replace(LIBRARY, openmp=False, stale=True, used=None)
    text = lines(monkeypatch, native=library, openmp=(), memory=None)
    assert text["native library"] == (
        "/here/_native.so; its C++ sources have changed since; "
        "compiled without OpenMP, so kernels have one thread"
    )
    assert text["instruction sets"] == "baseline, avx2, avx512 (this processor does not have it)"
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


def test_what_the_processor_has_and_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    text = lines(
        monkeypatch,
        instructions=("avx2", "amx_int8"),
        caches=(Cache(1, "Data", 49152, 64, 1), Cache(3, "Unified", 1 << 25, 64, 8)),
        adapters=("Some GPU (driver, Vulkan)",),
        rates={"cpu": Rates("cpu", 20e9, 100e9, None, 900e9)},
        devices=(Device("NVIDIA H100", 85_000_000_000, "9.0", ("fp16", "fp8")),),
    )
    assert text["instructions"] == "avx2 amx_int8"
    assert text["caches"] == "L1d 48 KiB, L3 32768 KiB for 8 cores"
    assert text["webgpu:0"] == "Some GPU (driver, Vulkan)"
    assert text["rates of cpu"] == "copy 20.0 GB/s; products: float32 100 Gop/s, int8 900 Gop/s"
    assert text["cuda:0"].endswith("compute capability 9.0; multiplies fp16, fp8")


def test_which_formats_run_on_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    covered = (
        KernelCoverage("quantize", ("mxfp4", "int8"), (), {}),
        KernelCoverage("linear", (), ("mxfp4",), {"int8": "no cpu kernel computes linear"}),
    )
    found = replace(bs.hardware(), kernels={"cpu": covered})
    monkeypatch.setattr(bs, "hardware", lambda measure=False: found)
    table = run().split("\n\n")[2].splitlines()
    assert table[1].split() == ["cpu", "quantize", "2", "none"]
    assert table[2].endswith(
        "by the tensors: mxfp4; int8 on the reference: no cpu kernel computes linear"
    )
