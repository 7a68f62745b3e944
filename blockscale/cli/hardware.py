"""`blockscale hardware`: what this machine can compute with, and which kernels run."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

import blockscale as bs
from blockscale.cli.tables import size, table
from blockscale.kernels.hardware import Device, Hardware, Native


def hardware(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what this machine computes with, which kernels run on it, and why others do not."""
    found = bs.hardware()
    print(json.dumps(asdict(found), indent=2) if as_json else _text(found))


def _text(found: Hardware) -> str:
    memory = "unknown" if found.memory is None else size(found.memory)
    rows = [
        ("blockscale", found.blockscale),
        ("python", f"{found.python} on {found.system}"),
        ("torch", f"{found.torch}, with {found.vectors}"),
        ("processor", found.processor),
        ("cores", f"{found.cores}; threads of torch and of kernels: {found.threads}"),
        ("memory", memory),
        *[(f"cuda:{i}", _device(each)) for i, each in enumerate(found.devices)],
        ("OpenMP", ", ".join(found.openmp) or "none loaded"),
        *_library(found.native),
    ]
    wide = max(len(name) for name, _ in rows)
    facts = "\n".join(f"{name.ljust(wide)}  {value}" for name, value in rows)
    backends = [(name, reason or "runs") for name, reason in found.backends.items()]
    return f"{facts}\n\n{table(('backend', 'kernels'), backends)}"


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
