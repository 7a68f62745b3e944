"""`blockscale hardware`: what this machine can compute with, and which kernels run."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

import blockscale as bs
from blockscale.kernels.hardware import Device, Hardware, Native
from blockscale.report.table import aligned
from blockscale.report.wording import size


def hardware(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what this machine computes with, which kernels run on it, and why others do not."""
    machine = bs.hardware()
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
    ]
    wide = max(len(name) for name, _ in rows)
    facts = "\n".join(f"{name.ljust(wide)}  {value}" for name, value in rows)
    backends = [(name, reason or "runs") for name, reason in machine.backends.items()]
    return f"{facts}\n\n{aligned(('backend', 'kernels'), backends)}"


def _device(device: Device) -> str:
    return f"{device.name}, {size(device.memory)}, compute capability {device.capability}"


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
        return f"{name} (not in this processor)"
    return f"{name} (in use)" if name == native.used else name
