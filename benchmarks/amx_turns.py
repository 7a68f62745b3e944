# SPDX-License-Identifier: BSD-3-Clause
"""Two builds of the native library, before and after, in turns on a processor with AMX.

    python benchmarks/amx_turns.py BASE.tgz [SECONDS]

BASE.tgz has the package before (`git archive COMMIT CMakeLists.txt pyproject.toml
README.md LICENSE blockscale`); the tree that this file is in has those after. Both
are compiled into /tmp, then processes of either take turns until the time is up. Figures are times
of 4096 x 4096 layers on two threads in those of torch's float32 layer of the same process; the
least of many calls. No layer is called twice in a row, so that weights come from memory. Then
choices (tuning.h) are swept with the later build. JSON is written into $OUT.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CORES, THREADS, SIZE = 6, 2, 4096
ROWS = (1, 32, 512)
PAIRS = (
    ("int8_channel", "int8_token"),
    ("int4:group32:fp32", "int8_token"),
    ("mxint8", "mxint8"),
    ("bfp8", "bfp8"),
    ("int8_channel", "uint8:token:fp32:asym"),
)
WEIGHTS = ("mxfp4", "mxfp8", "nvfp4", "int4:group32:fp32", "int8_channel")
MINILM = ((384, 384), (384, 384), (384, 384), (384, 384), (384, 1536), (1536, 384))
MINILM_ROWS = 2048
MOST = 1 << 30
TILES = {  # rows from which matrices multiply: all, or none
    "tiles": {
        **dict.fromkeys(("vector_rows", "vector_rows_of_blocks"), 0),
        **dict.fromkeys(("bf16_rows_float", "bf16_rows_of_parts_float"), 1),
        **dict.fromkeys(("wide_rows_float", "wide_rows_of_parts_float"), 1),
        **dict.fromkeys(("few_of_nibbles_float", "few_of_books_float", "few_of_bytes_float"), 0),
    },
    "vectors": {
        **dict.fromkeys(("vector_rows", "vector_rows_of_blocks"), MOST),
        **dict.fromkeys(("bf16_rows_float", "bf16_rows_of_parts_float"), MOST),
        **dict.fromkeys(("wide_rows_float", "wide_rows_of_parts_float"), MOST),
        "few_of_nibbles_float": 16,
        "few_of_books_float": 8,
        "few_of_bytes_float": 12,
    },
}
SWEPT = {
    "matrix_rows_bytes": (256 << 10, 512 << 10, 1 << 20, 1536 << 10, 2 << 20),
    "matrix_codes": (256, 512, 1024, 4096),
    "matrix_panels": (4, 8, 16, 32),
}
Call = Callable[[], object]


def build(source: Path, folder: Path) -> subprocess.Popen[bytes]:
    command = (
        f"cmake -S {source} -B {folder} -G Ninja -DPython_EXECUTABLE={sys.executable} "
        f"'-DBLOCKSCALE_ISAS=avx512vnni;amx' && ninja -C {folder}"
    )
    return subprocess.Popen(f"({command}) >{folder}.log 2>&1", shell=True)


def least(calls: dict[str, Call], seconds: float, turns: int = 3) -> dict[str, float]:
    best = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()
    end, done = time.perf_counter() + seconds, 0
    while done < turns or time.perf_counter() < end:
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - start)
        done += 1
    return best


def quantized(weight: str, given: str | None, k: int = SIZE, n: int = SIZE) -> Any:
    import torch

    import blockscale as bs

    torch.manual_seed(k + n)
    model = torch.nn.Sequential(torch.nn.Linear(k, n))
    bs.quantize_(model, bs.Recipe(weight=weight, input=given))
    return model[0]


def all_layers() -> dict[str, Any]:
    layers = {f"{weight} x {given}": quantized(weight, given) for weight, given in PAIRS}
    return layers | {weight: quantized(weight, None) for weight in WEIGHTS}


def calls_of(
    layers: dict[str, Any], m: int, only: Callable[[str], bool] = lambda _: True
) -> dict[str, Call]:
    """Contestants, those of one layer far from one another."""
    import torch

    x = torch.randn(m, SIZE)
    calls: dict[str, Call] = {name: partial(layer, x) for name, layer in layers.items()}
    for name in WEIGHTS:
        calls[f"{name} bf16"] = partial(layers[name], x.bfloat16())
    return {name: call for name, call in calls.items() if only(name)}


def torch_layers(m: int) -> dict[str, Call]:
    import torch

    x = torch.randn(m, SIZE)
    floats, halves = torch.nn.Linear(SIZE, SIZE), torch.nn.Linear(SIZE, SIZE).bfloat16()
    return {"torch fp32": partial(floats, x), "torch bf16": partial(halves, x.bfloat16())}


def minilm(layers: list[Any], x: Any, wide: Any) -> None:
    for layer in layers:
        layer(wide if layer.in_features == 1536 else x)


def measured(seconds: float) -> dict[str, Any]:
    """What one process finds: {rows: {what: seconds}}."""
    import torch

    layers, found = all_layers(), {}
    for m in ROWS:
        found[str(m)] = least({**torch_layers(m), **calls_of(layers, m)}, seconds)
    x, wide = torch.randn(MINILM_ROWS, 384), torch.randn(MINILM_ROWS, 1536)
    kinds = {"torch fp32": [torch.nn.Linear(k, n) for k, n in MINILM]}
    for weight, given in PAIRS[:3]:
        kinds[f"{weight} x {given}"] = [quantized(weight, given, k, n) for k, n in MINILM]
    calls: dict[str, Call] = {name: partial(minilm, each, x, wide) for name, each in kinds.items()}
    found["minilm"] = least(calls, seconds / 2)
    return found


def differences(layers: dict[str, Any]) -> dict[str, float]:
    """By tiles and by vectors: the largest difference in units of the largest result; pairs: 0."""
    import torch

    from blockscale.kernels.cpu import _native

    found = {}
    for m in (19, 200):
        for name, call in calls_of(layers, m).items():
            results = []
            for choices in TILES.values():
                _native.set_tuning(choices)
                results.append(torch.as_tensor(call()).float())
            off = (results[0] - results[1]).abs().max() / results[0].abs().max()
            found[f"{name} | {m}"] = off.item()
    return found


def swept(seconds: float) -> dict[str, Any]:
    """Seconds of the later build, tiles beside vectors and by choice: {case: {what | value}}."""
    from blockscale.kernels.cpu import _native

    sets = {kind: all_layers() for kind in TILES}  # a weight keeps how many rows are few
    layers = sets["tiles"]
    found: dict[str, Any] = {"off, 1e-3": differences(layers)}
    for m in (8, 16, 32, 64, 128):
        calls = {}
        for kind, choices in TILES.items():
            for name, call in calls_of(sets[kind], m).items():
                calls[f"{name} | {kind}"] = partial(chosen, _native, choices, call)
        found[f"rows {m}"] = least(calls, seconds, 2)
    _native.set_tuning(TILES["tiles"])
    for choice, values in SWEPT.items():
        floats = choice == "matrix_panels"
        fits = (lambda name: " x " not in name) if floats else (lambda name: " x " in name)
        calls = {
            f"{name} | {value}": partial(chosen, _native, {choice: value}, call)
            for value in values
            for name, call in calls_of(layers, 512, fits).items()
        }
        found[choice] = least(calls, seconds, 2)
        _native.set_tuning({choice: values[1]})
    return found


def chosen(native: Any, choices: dict[str, int], call: Call) -> None:
    native.set_tuning(choices)
    call()


def worker(library: Path, tree: Path, what: str, seconds: float) -> dict[str, Any]:
    environment = os.environ | {
        "BLOCKSCALE_NATIVE": str(library),
        "BLOCKSCALE_CPU_ISA": "amx",
        "PYTHONPATH": str(tree),
        "BLOCKSCALE_TUNE_CACHE": "/tmp/none.json",
        "MALLOC_TRIM_THRESHOLD_": "8000000000",
        "MALLOC_MMAP_THRESHOLD_": "8000000000",
    }
    done = subprocess.run(
        [sys.executable, __file__, "--worker", what, str(seconds)],
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def work(what: str, seconds: float) -> None:
    import torch

    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    torch.set_num_threads(THREADS)
    with torch.no_grad():
        print(json.dumps(measured(seconds) if what == "measured" else swept(seconds)))


def best(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The least of each, in times of torch's float32 layer; that one's in milliseconds."""
    found: dict[str, Any] = {}
    for case in runs[0]:
        least = {name: min(run[case][name] for run in runs) for name in runs[0][case]}
        unit = least["torch fp32"]
        found[case] = {name: round(t / unit, 4) for name, t in least.items()}
        found[case]["torch fp32"] = round(unit * 1e3, 3)
    return found


def compiled(trees: dict[str, Path], folder: Path) -> dict[str, Path]:
    builds = {name: build(tree, folder / name) for name, tree in trees.items()}
    for name, each in builds.items():
        if each.wait():
            log = (folder / f"{name}.log").read_text()
            sys.exit(f"{name} does not compile:\n{log[-3000:]}")
    return {name: next((folder / name).glob("_native*.so")) for name in trees}


def show(figures: dict[str, Any], sweep: dict[str, Any]) -> None:
    for case, before in figures["before"].items():
        for name, share in before.items():
            print(f"{case:>7} {name:40} {share:8.3f} -> {figures['after'][case][name]:8.3f}")
    for case, times in sweep.items():
        rows: dict[str, list[str]] = {}
        for name, t in times.items():
            what, value = name.split(" | ")
            rows.setdefault(what, []).append(f"{value}: {t * 1e3:.2f}")
        for what, values in rows.items():
            print(f"{case:>17} {what:40} {'  '.join(values)}")


def main() -> None:
    start, limit = time.time(), float(sys.argv[2]) if len(sys.argv) > 2 else 400.0
    folder = Path(tempfile.mkdtemp(prefix="amx_"))
    trees = {"before": folder / "source", "after": ROOT}
    trees["before"].mkdir()
    subprocess.run(["tar", "xzf", sys.argv[1], "-C", trees["before"]], check=True)
    libraries = compiled(trees, folder)
    print(f"compiled in {time.time() - start:.0f} s", flush=True)
    runs: dict[str, list[Any]] = {name: [] for name in libraries}
    figures, sweep, took = {}, {}, 0.0
    out = Path(os.environ.get("OUT", ".")) / "amx-turns.json"
    while not runs["before"] or time.time() - start + took < limit:
        begin = time.time()
        for name in list(libraries)[:: -1 if len(runs["before"]) % 2 else 1]:
            runs[name].append(worker(libraries[name], trees[name], "measured", 3.0))
        took = time.time() - begin
        figures = {name: best(each) for name, each in runs.items()}
        if not sweep and time.time() - start < limit - 90:
            sweep = worker(libraries["after"], ROOT, "swept", 3.0)
        record = {"rounds": len(runs["before"]), "figures": figures, "sweep": sweep, "runs": runs}
        out.write_text(json.dumps(record, indent=1))
        print(f"round {len(runs['before'])} after {time.time() - start:.0f} s", flush=True)
    show(figures, sweep)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[2], float(sys.argv[3]))
    else:
        main()
