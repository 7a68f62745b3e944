# SPDX-License-Identifier: BSD-3-Clause
"""What this machine can compute with, and which kernels run here, for which formats. Probed only
when asked."""

import os
import platform
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from blockscale.core.parse import CATALOG, parse
from blockscale.kernels import cpu
from blockscale.kernels.numbers import lower
from blockscale.kernels.processor import Cache, caches, instructions, tensor_formats
from blockscale.kernels.rates import Rates, rates
from blockscale.kernels.registry import KERNELS, ByFormats, backends, unavailable

OPS = ("quantize", "dequantize", "fake_quantize", "linear", "embedding", "conv", "conv_transpose")


@dataclass(frozen=True)
class KernelCoverage:
    """One op on one backend.

    runs: the named formats that its kernels take; by_call: those of which they look at tensors, too
    reference: {named format: why it runs on the reference}
    """

    op: str
    runs: tuple[str, ...]
    by_call: tuple[str, ...]
    reference: dict[str, str]


def coverage(backend: str) -> tuple[KernelCoverage, ...]:
    """What a backend's kernels take, op by op; () where the backend cannot run here."""
    if unavailable(backend) is not None:
        return ()
    with warnings.catch_warnings():
        # asking may start a device, which then says what `Hardware.adapters` says: it is software
        warnings.filterwarnings("ignore", "WebGPU computes on", UserWarning)
        return tuple(_of_op(op, backend) for op in OPS)


def _of_op(op: str, backend: str) -> KernelCoverage:
    kernels = KERNELS.get((op, backend), [])
    entries = [each.supports for each in kernels if isinstance(each.supports, ByFormats)]
    runs, by_call, reference = [], [], {}
    for name, spelling in CATALOG.items():
        formats = (parse(spelling),)
        if any(supports(formats, ()) for supports in entries):
            runs.append(name)
        elif len(entries) < len(kernels):
            by_call.append(name)
        else:
            reference[name] = _why(op, backend, spelling) if kernels else _NONE.format(backend, op)
    return KernelCoverage(op, tuple(runs), tuple(by_call), reference)


_NONE = "no {} kernel computes {}"


def _why(op: str, backend: str, spelling: str) -> str:
    """What of a format the kernels do not know."""
    numbers = lower(spelling)
    if numbers is None:
        return "its element does not describe its numbers to kernels (Element.numbers)"
    if not numbers.features:
        return f"no {backend} kernel of {op} takes its elements"
    return f"no {backend} kernel of {op} takes its elements with {', '.join(numbers.features)}"


# The machine


@dataclass(frozen=True)
class Native:
    """The compiled library of the CPU's kernels.

    isas: the instruction sets that it was compiled for, slowest first
    present: those of them that run here
    lacking: why the others do not
    used: the one in use; None if BLOCKSCALE_CPU_ISA names another
    stale: whether the C++ sources beside it have changed since
    """

    path: str
    compiler: str
    flags: str
    openmp: bool
    isas: tuple[str, ...]
    present: tuple[str, ...]
    used: str | None
    stale: bool
    lacking: dict[str, str]


@dataclass(frozen=True)
class Device:
    """An accelerator that torch sees. `memory` is in bytes; formats: of `tensor_formats`."""

    name: str
    memory: int
    capability: str
    formats: tuple[str, ...] = ()


@dataclass(frozen=True)
class Hardware:
    """What `hardware` found.

    cores: those that this process may use
    threads: torch's, which kernels use too
    memory: the machine's, in bytes; None where the system does not say
    vectors: the instructions that torch's own kernels use
    openmp: the OpenMP libraries in this process; more than one compete for the cores
    native: the compiled library, or the reason why there is none
    backends: for each, the reason why no kernel of it can run here, or None if they can
    instructions: the processor's, of those that kernels for small numbers are made of
    caches: of the first core, the nearest first; () where the system does not list them
    adapters: what WebGPU could compute on, the preferred one first
    kernels: {backend: which formats each op runs on its kernels, and why not the others}
    rates: {device: what was measured}; empty unless that was asked for
    """

    blockscale: str
    python: str
    torch: str
    system: str
    processor: str
    cores: int
    threads: int
    memory: int | None
    vectors: str
    openmp: tuple[str, ...]
    native: Native | str
    devices: tuple[Device, ...]
    backends: dict[str, str | None]
    instructions: tuple[str, ...] = ()
    caches: tuple[Cache, ...] = ()
    adapters: tuple[str, ...] = ()
    kernels: dict[str, tuple[KernelCoverage, ...]] = field(default_factory=dict)
    rates: dict[str, Rates] = field(default_factory=dict)


def hardware(measure: bool = False) -> Hardware:
    """What this machine can compute with, and which backends run here, or why not.

    measure: time copies and products, about a second for the CPU and each CUDA device

    Loads the kernels of every backend. `dataclasses.asdict` makes plain data of the result.
    """
    reasons = {each: _reason(each) for each in backends()}  # first: this loads what is below
    return Hardware(
        blockscale=sys.modules["blockscale"].__version__,  # loaded: this module is below it
        python=platform.python_version(),
        torch=torch.__version__,
        system=f"{platform.system()} {platform.machine()}",
        processor=_processor(),
        cores=_cores(),
        threads=torch.get_num_threads(),
        memory=_memory(),
        vectors=torch.backends.cpu.get_cpu_capability(),
        openmp=_openmp(),
        native=_native(),
        devices=_devices(),
        backends=reasons,
        instructions=instructions(),
        caches=caches(),
        adapters=_adapters(reasons),
        kernels={each: coverage(each) for each in reasons if reasons[each] is None},
        rates={each: rates(each) for each in _rated_devices()} if measure else {},
    )


def _rated_devices() -> list[str]:
    """The devices that have rates."""
    return ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]


def _adapters(reasons: dict[str, str | None]) -> tuple[str, ...]:
    """The names of WebGPU's adapters; none where it cannot run."""
    if reasons.get("webgpu", "") is not None:
        return ()
    from blockscale.kernels.webgpu.gpu import device

    return tuple(
        f"{device.describe(each)}{', software' if device.is_software(each) else ''}"
        for each in device.adapters()
    )


def _reason(backend: str) -> str | None:
    try:
        return unavailable(backend)
    except ValueError as error:  # an environment variable that asks for what is not here
        return str(error)


def _native() -> Native | str:
    library = cpu.load()
    if isinstance(library, str):
        return library
    build = library.build()
    return Native(
        path=str(library.__file__),
        compiler=build["compiler"],
        flags=build["flags"],
        openmp=build["openmp"],
        isas=tuple(library.compiled_isas()),
        present=tuple(library.isas()),
        used=_isa_in_use(library.isa),
        stale=cpu.stale(library),
        lacking=library.lacking(),
    )


def _isa_in_use(isa: Callable[[], str]) -> str | None:
    try:
        return isa()
    except ValueError:  # `backends` has the reason
        return None


def _processor() -> str:
    """Its name, where the system tells; Linux on Arm does not."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        match = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE)
        return match[1] if match else platform.machine()
    return platform.processor() or platform.machine()


def _cores() -> int:
    """Containers and `taskset` give a process fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory() -> int | None:
    if "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", ()):
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _openmp() -> tuple[str, ...]:
    """The OpenMP libraries mapped into this process; none where the system does not list them."""
    maps = Path("/proc/self/maps")
    text = maps.read_text() if maps.exists() else ""
    return tuple(sorted(set(re.findall(r"/\S*/lib(?:gomp|iomp|omp)[^/\s]*", text))))


def _devices() -> tuple[Device, ...]:
    if not torch.cuda.is_available():
        return ()
    every = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return tuple(
        Device(p.name, p.total_memory, f"{p.major}.{p.minor}", tensor_formats(p.major, p.minor))
        for p in every
    )
