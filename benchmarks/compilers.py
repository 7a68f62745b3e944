# SPDX-License-Identifier: BSD-3-Clause
"""The primitives of the CPU, compiled by each C++ compiler that is here, in turns.

    python -m benchmarks.compilers [--only g++-12,clang++-16] [--formats int4] [--isa avx512]

What one compiler makes of a loop another may not: this finds where. Each compiler builds the
library for one instruction set, then one process for each library times every primitive on one
thread, case by case, in turns. A figure is the least of some calls in nanoseconds of the
processor's time per element, of tensors that stay in L2, so that memory hides nothing. Where one
library takes more than 1.15 times as long as the fastest of the same turn, in the median of the
turns, that is a finding. GCC also builds with what distributions add to every build ("hardened"):
Ubuntu's GCC 13 checks the sizes of copies by itself, for one.

JSON goes into benchmarks/results/ or to --output. `apt-get install g++-11 clang-14 clang-19` brings
more compilers. Exits with 1 if there are findings.
"""

import argparse
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LIMIT = 1.15
ROUNDS, CALLS = 8, 12  # turns, and calls in each
ROWS, COLUMNS = 128, 1024
COMPILERS = (
    *(f"g++-{version}" for version in range(11, 17)),
    *(f"clang++-{version}" for version in range(14, 23)),
)
# The flags that Ubuntu's GCC sets by itself and Debian's and Fedora's packages are built with.
HARDENED = "-D_FORTIFY_SOURCE=3 -fstack-protector-strong -fstack-clash-protection -fcf-protection"
OPS = ("choose_qparams", "quantize", "quantize_given", "dequantize", "fake_quantize",
       "straight_through", "pack", "unpack")  # fmt: skip
WIDTHS = tuple(f"int{bits}:group32:fp32" for bits in (2, 3, 5, 6, 7))
MORE = (
    "uint4:group32:fp32:asym",
    "int8:group32:e8m0/floor:stochastic",
    "e2m1:tile16x16:e8m0/floor",
)
# The instruction set whose primitives run here, by what torch says of the processor.
PRIMITIVES = {"AVX512": "avx512", "AVX2": "avx2", "DEFAULT": "baseline"}
Call = Callable[[], object]
Figures = Mapping[str, Mapping[str, float]]  # {case: {library: one}}
Turns = Mapping[str, Sequence[Mapping[str, float]]]  # {case: [{library: nanoseconds per element}]}


def contestants(
    which: Callable[[str], str | None], only: Sequence[str] = ()
) -> dict[str, tuple[str, str]]:
    """{library: (compiler, flags)} of the compilers that are here, each file once."""
    found: dict[str, tuple[str, str]] = {}
    seen: set[str] = set()
    for name in (*COMPILERS, "g++", "clang++"):
        path = which(name)
        if path is None or os.path.realpath(path) in seen or (only and name not in only):
            continue
        seen.add(os.path.realpath(path))
        found[name] = (path, "")
        if name.startswith("g++"):
            found[f"{name} hardened"] = (path, HARDENED)
    return found


def primitives_of(machine: str, capability: str) -> str:
    """The instruction set whose primitives run on a machine that torch finds this capability on."""
    return "neon" if machine in ("aarch64", "arm64") else PRIMITIVES.get(capability, "baseline")


def least(turns: Turns) -> dict[str, dict[str, float]]:
    """{case: {library: the least of its figures}}."""
    return {
        case: {name: min(turn[name] for turn in each) for name in each[0]}
        for case, each in turns.items()
    }


def ratios(turns: Turns) -> dict[str, dict[str, float]]:
    """{case: {library: its times in those of the same turn's fastest, the median of the turns}}.

    A processor that changes its speed changes that of the libraries of one turn alike, but for the
    turn in which it does so.
    """
    return {
        case: {
            name: statistics.median(turn[name] / min(turn.values()) for turn in each)
            for name in each[0]
        }
        for case, each in turns.items()
    }


def findings(of_fastest: Figures, limit: float = LIMIT) -> list[dict[str, Any]]:
    """Cases in which a library takes more than `limit` times as long as the fastest, worst first.

    of_fastest: as of `ratios`
    """
    found = []
    for case, each in of_fastest.items():
        best = min(each, key=lambda name: each[name])
        for name, figure in each.items():
            if figure > limit * each[best]:
                ratio = round(figure / each[best], 3)
                found.append({"case": case, "library": name, "fastest": best, "ratio": ratio})
    return sorted(found, key=lambda each: -each["ratio"])


def means(of_fastest: Figures) -> dict[str, float]:
    """{library: the geometric mean of its ratios}, best first."""
    names = next(iter(of_fastest.values()))
    logs = {name: [math.log(each[name]) for each in of_fastest.values()] for name in names}
    found = {name: round(math.exp(sum(each) / len(each)), 4) for name, each in logs.items()}
    return dict(sorted(found.items(), key=lambda item: item[1]))


def build(source: Path, folder: Path, compiler: str, flags: str, isa: str) -> Path:
    """The library that a compiler makes. Raises RuntimeError with its last words if it does not."""
    import cmake
    import ninja

    tools = Path(cmake.CMAKE_BIN_DIR, "cmake"), Path(ninja.BIN_DIR, "ninja")
    configure = [
        tools[0], "-S", source, "-B", folder, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tools[1]}",
        f"-DCMAKE_CXX_COMPILER={compiler}", f"-DCMAKE_CXX_FLAGS={flags}",
        f"-DPython_EXECUTABLE={sys.executable}", f"-DBLOCKSCALE_ISAS={isa}",
    ]  # fmt: skip
    for command in (configure, [tools[0], "--build", folder]):
        done = subprocess.run(
            list(map(str, command)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{compiler} does not build the library:\n{done.stdout[-3000:]}")
    libraries = list(folder.glob("_native*.so"))
    if not libraries:
        raise RuntimeError(
            f"{compiler} left the library out: {(folder / '_unbuilt.txt').read_text()}"
        )
    return libraries[0]


def calls_of(fmt: str) -> Iterator[tuple[str, Call]]:
    """(op, a call of it) for a format, on float32 of ROWS x COLUMNS."""
    import torch

    from blockscale.core.operand import Quantizer, operand, quantizer
    from blockscale.core.parse import parse
    from blockscale.ops import primitives as P

    x = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(1))
    form = parse(fmt)
    seed = torch.tensor([1, 0]) if form.rounding == "stochastic" else None
    given = P.from_list(P.choose_qparams(x, fmt), form)
    by, own = quantizer(given, fmt, seed), Quantizer(None, None, None, fmt, seed)
    packed = P.quantize(x, by)
    codes = P.unpack(packed, fmt, COLUMNS)
    stored, gradient = operand(packed, given, fmt, COLUMNS), torch.ones_like(x)
    yield from {
        "choose_qparams": lambda: P.choose_qparams(x, fmt),
        "quantize": lambda: P.choose_quantize(x, fmt, seed),
        "quantize_given": lambda: P.quantize(x, by),
        "dequantize": lambda: P.dequantize(stored, torch.float32),
        "fake_quantize": lambda: P.fake_quantize(x, own),
        "straight_through": lambda: P.straight_through(gradient, x, own),
        "pack": lambda: P.pack(codes, fmt),
        "unpack": lambda: P.unpack(packed, fmt, COLUMNS),
    }.items()


def serve() -> None:
    """A worker: for each format read, times of all its primitives; first, how it was compiled."""
    import torch

    from blockscale.kernels.cpu import _native

    torch.set_num_threads(1)
    print(json.dumps(_native.build()), flush=True)
    calls: dict[str, dict[str, Call]] = {}
    for line in sys.stdin:
        fmt = line.strip()
        made = calls.setdefault(fmt, {}) or calls[fmt]
        if not made:
            made.update(calls_of(fmt))
        print(json.dumps({f"{op}/{fmt}": timed(call) for op, call in made.items()}), flush=True)


def timed(call: Call) -> float:
    """Nanoseconds of the processor's time per element, the least of some calls."""
    best = math.inf
    for _ in range(CALLS):
        start = time.thread_time_ns()
        call()
        best = min(best, time.thread_time_ns() - start)
    return round(best / (ROWS * COLUMNS), 4)


class Worker:
    """A process that has loaded one of the libraries."""

    def __init__(self, library: Path, isa: str):
        environment = os.environ | {
            "BLOCKSCALE_NATIVE": str(library), "BLOCKSCALE_CPU_ISA": isa, "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT), "MALLOC_TRIM_THRESHOLD_": "8000000000",
            "MALLOC_MMAP_THRESHOLD_": "8000000000",
        }  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.compilers", "--serve"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        self.build: dict[str, str] = self._answer()

    def times(self, fmt: str) -> dict[str, float]:
        """{case: nanoseconds per element} of a format."""
        assert self._process.stdin is not None
        print(fmt, file=self._process.stdin, flush=True)
        return self._answer()

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a worker ended with {self._process.wait()}: see above")
        return json.loads(line)


def race(workers: Mapping[str, Worker], formats: Sequence[str], rounds: int) -> Turns:
    """The figures of each case, turn by turn; every other turn is taken backwards."""
    turns: dict[str, list[dict[str, float]]] = {}
    for fmt in formats:
        for turn in range(rounds):
            for name in list(workers)[:: -1 if turn % 2 else 1]:
                for case, figure in workers[name].times(fmt).items():
                    each = turns.setdefault(case, [])
                    if len(each) == turn:
                        each.append({})
                    each[turn][name] = figure
        print(".", end="", flush=True)
    print()
    return turns


def built(
    wanted: Mapping[str, tuple[str, str]], folder: Path, isa: str
) -> tuple[dict[str, Path], dict[str, str]]:
    """The libraries, and of those that were not built, why; one for each four cores at a time."""

    def one(name: str) -> Path | str:
        start, (compiler, flags) = time.time(), wanted[name]
        found: Path | str
        try:
            found = build(ROOT, folder / name.replace(" ", "-"), compiler, flags, isa)
        except RuntimeError as error:
            found = str(error)
        how = "built" if isinstance(found, Path) else "FAILED"
        print(f"{name}: {how} in {time.time() - start:.0f} s", flush=True)
        return found

    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 4)) as pool:
        found = dict(zip(wanted, pool.map(one, wanted), strict=True))
    libraries = {name: each for name, each in found.items() if isinstance(each, Path)}
    return libraries, {name: each for name, each in found.items() if isinstance(each, str)}


def show(figures: Mapping[str, Any]) -> None:
    """What a reader wants first."""
    for name, mean in figures["means"].items():
        print(f"{name:20} {mean:.3f} of the fastest, on the whole")
    for each in figures["findings"]:
        print("{ratio:6.2f} {case:50} {library} (fastest: {fastest})".format(**each))
    for name, reason in figures["failed"].items():
        print(f"{name}: {reason}")


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser("python -m benchmarks.compilers")
    parser.add_argument("--only", default="", help="compilers, by name, with commas between them")
    parser.add_argument("--formats", default="", help="in place of all named ones and all widths")
    parser.add_argument("--isa", default="", help="in place of the best that the processor has")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--output", type=Path, help="a file in place of one in benchmarks/results/")
    parser.add_argument("--folder", type=Path, help="where libraries are built, and kept")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(words)


def main() -> int:
    asked = arguments()
    if asked.serve:
        serve()
        return 0
    import torch

    import blockscale as bs
    from benchmarks.record import record

    capability = torch.backends.cpu.get_cpu_capability()
    isa = asked.isa or primitives_of(platform.machine(), capability)
    formats = list(filter(None, asked.formats.split(","))) or [*bs.formats(), *WIDTHS, *MORE]
    folder = asked.folder or Path(tempfile.mkdtemp(prefix="compilers_"))
    libraries, failed = built(
        contestants(shutil.which, list(filter(None, asked.only.split(",")))), folder, isa
    )
    workers = {name: Worker(library, isa) for name, library in libraries.items()}
    turns = race(workers, formats, asked.rounds)
    of_fastest = ratios(turns)
    builds = {name: worker.build for name, worker in workers.items()}
    for worker in workers.values():
        worker.close()
    figures = {
        "isa": isa, "shape": [ROWS, COLUMNS], "threads": 1, "limit": LIMIT, "builds": builds,
        "failed": failed, "means": means(of_fastest), "findings": findings(of_fastest),
        "nanoseconds": least(turns),
    }  # fmt: skip
    print(f"written: {record('compilers', figures, asked.output)}")
    show(figures)
    return 1 if figures["findings"] or failed else 0


if __name__ == "__main__":
    sys.exit(main())
