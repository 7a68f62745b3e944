# SPDX-License-Identifier: BSD-3-Clause
"""Linear layers by vectors and by the matrix unit, in times of torch's float32 layer.

    PYTHONPATH=. python benchmarks/amx.py [NAME]

Layers of 4096 x 4096 take turns within one process, so that ratios hold whatever else the machine
does; figures are the least of many turns. Inputs of pairs are float32, quantized within the time.
Without AMX only the vectors are measured. Written to benchmarks/results/NAME.json (amx) with
hardware, versions and commit.
"""

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import blockscale as bs
from benchmarks.record import record
from blockscale.kernels.cpu import _native
from blockscale.layers.kinds import QLinear

SIZE = 4096
ROWS = (1, 32, 512)
THREADS = (2, 16)
PAIRS = (
    ("int8_channel", "int8_token"),
    ("int4:group32:fp32", "int8_token"),
    ("mxint8", "mxint8"),
    ("bfp8", "bfp8"),
    ("int8_channel", "uint8:token:fp32:asym"),
)
WEIGHTS = ("mxfp4", "mxfp8", "nvfp4", "int4:group32:fp32")  # alone: x stays float32 or bf16
SETS = ("avx512vnni", "amx")
SECONDS, TURNS = 2.0, 4  # for each number of rows, at least

Call = Callable[[], object]


def quantized(weight: str, given: str | None) -> QLinear:
    model = nn.Sequential(nn.Linear(SIZE, SIZE))
    bs.quantize_(model, bs.Recipe(weight=weight, input=given))
    return model[0]  # type: ignore[return-value]


def by(isa: str, layer: QLinear, x: Tensor) -> object:
    _native.select_isa(isa)
    return layer(x)


def least(calls: dict[str, Call]) -> dict[str, float]:
    """Seconds of each call, which take turns until the time is up."""
    best = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()
    end, done = time.perf_counter() + SECONDS, 0
    while done < TURNS or time.perf_counter() < end:
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - start)
        done += 1
    return best


def measured(layers: dict[str, QLinear], threads: int) -> dict[str, Any]:
    """{rows: {what: time in torch's float32 layer's}}; that one's own is in milliseconds."""
    torch.set_num_threads(threads)
    floats, halves = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE).bfloat16()
    sets = [isa for isa in SETS if isa in _native.isas()]
    found: dict[str, Any] = {}
    for m in ROWS:
        x = torch.randn(m, SIZE)
        calls: dict[str, Call] = {
            "torch fp32": partial(floats, x),
            "torch bf16": partial(halves, x.bfloat16()),
        }
        for name, layer in layers.items():
            for isa in sets:
                calls[f"{name} {isa}"] = partial(by, isa, layer, x)
                if name in WEIGHTS:
                    calls[f"{name} bf16 {isa}"] = partial(by, isa, layer, x.bfloat16())
        best = least(calls)
        unit = best["torch fp32"]
        found[str(m)] = {name: round(t / unit, 4) for name, t in best.items()}
        found[str(m)]["torch fp32 ms"] = round(unit * 1e3, 3)
        for name, ratio in found[str(m)].items():
            print(f"threads {threads} m {m:4}  {name:45} {ratio}", flush=True)
    return found


def main() -> None:
    cores = len(os.sched_getaffinity(0))
    with torch.no_grad():
        layers = {f"{weight} x {given}": quantized(weight, given) for weight, given in PAIRS}
        layers |= {weight: quantized(weight, None) for weight in WEIGHTS}
        figures: dict[str, Any] = {
            str(threads): measured(layers, threads) for threads in THREADS if threads <= cores
        }
    figures["not here"] = _native.lacking()
    print(record(sys.argv[1] if len(sys.argv) > 1 else "amx", figures))


if __name__ == "__main__":
    main()
