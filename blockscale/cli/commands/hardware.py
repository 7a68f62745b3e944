# SPDX-License-Identifier: BSD-3-Clause
"""`blockscale hardware`: what this machine can compute with, and which kernels run."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

import blockscale as bs
from blockscale.kernels.hardware import Device, Hardware, KernelCoverage, Native
from blockscale.kernels.processor import Cache
from blockscale.kernels.rates import Rates
from blockscale.reporting.table import aligned, size


def hardware(
    measure: Annotated[
        bool, typer.Option("--measure", help="Also measure speed (some seconds).")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what this machine computes with, and which kernels run.

    For kernels that do not run, it says why.
    """
    machine = bs.hardware(measure=measure)
    print(json.dumps(asdict(machine), indent=2) if as_json else _text(machine))


def _text(machine: Hardware) -> str:
    memory = "unknown" if machine.memory is None else size(machine.memory)
    rows = [
        ("blockscale", machine.blockscale),
        ("python", f"{machine.python} on {machine.system}"),
        ("torch", f"{machine.torch}, with {machine.vectors}"),
        ("processor", machine.processor),
        ("cores", f"{machine.cores}; threads of torch and of kernels: {machine.threads}"),
        ("memory", memory),
        *[(f"cuda:{i}", _device(each)) for i, each in enumerate(machine.devices)],
        ("OpenMP", ", ".join(machine.openmp) or "none loaded"),
        *_library(machine.native),
        ("instructions", " ".join(machine.instructions) or "not told by this system"),
        ("caches", ", ".join(map(_cache, machine.caches)) or "not told by this system"),
        *[(f"webgpu:{i}", each) for i, each in enumerate(machine.adapters)],
        *[(f"rates of {name}", _rates(each)) for name, each in machine.rates.items()],
    ]
    wide = max(len(name) for name, _ in rows)
    facts = "\n".join(f"{name.ljust(wide)}  {value}" for name, value in rows)
    backends = [(name, reason or "runs") for name, reason in machine.backends.items()]
    coverage = [
        (name, each.op, str(len(each.runs)), _others(each))
        for name, ops in machine.kernels.items()
        for each in ops
    ]
    tables = [aligned(("backend", "kernels"), backends)]
    if coverage:
        tables.append(aligned(("backend", "op", "named formats", "others"), coverage))
    return "\n\n".join([facts, *tables])


def _others(coverage: KernelCoverage) -> str:
    """What of the named formats does not simply run, and why."""
    lines = [f"by the tensors: {', '.join(coverage.by_call)}"] if coverage.by_call else []
    for reason in dict.fromkeys(coverage.reference.values()):
        names = [name for name, why in coverage.reference.items() if why == reason]
        several = ", ".join(names) if len(names) < 4 else str(len(names))
        lines.append(f"{several} on the reference: {reason}")
    return "; ".join(lines) or "none"


def _cache(cache: Cache) -> str:
    kind = {"Data": "d", "Instruction": "i"}.get(cache.kind, "")
    shared = f" for {cache.shared} cores" if cache.shared > 1 else ""
    return f"L{cache.level}{kind} {cache.size / 1024:.0f} KiB{shared}"


def _rates(rates: Rates) -> str:
    products = {
        "float32": rates.float32, "bfloat16": rates.bfloat16, "int8": rates.int8,
    }  # fmt: skip
    lines = [
        f"{name} {rate / 1e9:.0f} Gop/s" for name, rate in products.items() if rate is not None
    ]
    return f"copy {rates.copy / 1e9:.1f} GB/s; products: {', '.join(lines)}"


def _device(device: Device) -> str:
    line = f"{device.name}, {size(device.memory)}, compute capability {device.capability}"
    return f"{line}; multiplies {', '.join(device.formats)}" if device.formats else line


def _library(native: Native | str) -> list[tuple[str, str]]:
    if isinstance(native, str):
        return [("native library", "none; the table says why")]
    notes = ["its C++ sources have changed since"] if native.stale else []
    notes += [] if native.openmp else ["compiled without OpenMP, so kernels have one thread"]
    sets = [_set(name, native) for name in native.isas]
    return [
        ("native library", "; ".join([native.path, *notes])),
        ("compiled by", f"{native.compiler} {native.flags}"),
        ("instruction sets", ", ".join(sets)),
    ]


def _set(name: str, native: Native) -> str:
    if name not in native.present:
        return f"{name} ({native.lacking[name]})"
    return f"{name} (in use)" if name == native.used else name
