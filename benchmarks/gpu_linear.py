# SPDX-License-Identifier: BSD-3-Clause
"""Linear layers on a GPU: every candidate timed, the fastest of each kept.

python -m benchmarks.gpu_linear OUT_DIR [--formats A,B] [--rows 1,16] [--shapes NxK,…] [--seconds S]

Writes OUT_DIR/tuned.json (a table for kernels/cuda) and OUT_DIR/linear.json (every time). Times are
of CUDA graph replays over weights that together exceed the L2 cache, beside the bf16 layer and a
device copy of the same run. `python -m benchmarks.gpu_linear first-call` times what a new process
waits for. Whether results are right is tested in tests/gpu.
"""

import argparse
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch
import torch.nn.functional as F
import triton

import blockscale as bs
from blockscale.core.operand import Quantizer
from blockscale.core.parse import parse
from blockscale.kernels.cuda import available
from blockscale.kernels.cuda import tables as tune
from blockscale.kernels.cuda.matmul.choice import WayChoice, to_measure
from blockscale.kernels.cuda.matmul.operands import ProductCall, Weight
from blockscale.kernels.cuda.matmul.reading import reading
from blockscale.ops.linear import linear

DEFAULT = "mxfp4,nvfp4,int4,int8_channel,mxfp8,bfp8,int4:group32:fp32,fp8,mxint8,uint4"
PAIRS = (("int8_channel", "int8_token", "int8"), ("e4m3:channel0:fp32", "e4m3:token:fp32", "fp8"))
BOTH = (("mxint8", "mxint8"), ("bfp8", "bfp8"), ("mxfp8", "mxfp8"))
_kept: dict = {}


def made(fmt: str, n: int, k: int, seed: int = 0) -> Weight:
    """A weight of random codes and scales near 0.01."""
    if (fmt, n, k, seed) in _kept:
        return _kept[fmt, n, k, seed]
    form, g = parse(fmt), torch.Generator("cuda").manual_seed(seed)
    size = (n, k * form.bits // 8)
    codes = torch.randint(0, 256, size, dtype=torch.uint8, device="cuda", generator=g)
    if form.bits == 8 and "e" in form.element.name and form.element.name[0] == "e":
        codes &= 0xF7 if form.element.name == "e4m3" else 0xBF  # no NaN
    if form.bits == 8 and form.element.code_dtype is torch.int8:
        codes = codes.view(torch.int8)
    shape = form.block.scale_shape((n, k))
    if form.scale.dtype is torch.uint8:
        low, high = (8, 0x70) if "e8m0" not in str(form.scale) else (112, 124)
        scale = torch.randint(low, high, shape, dtype=torch.uint8, device="cuda", generator=g)
    else:
        scale = (torch.rand(shape, device="cuda", generator=g) * 0.01 + 0.001).to(form.scale.dtype)
    zero = (
        torch.randint(0, 15, shape, dtype=torch.int32, device="cuda", generator=g)
        if form.asym
        else None
    )
    two = "e8m0" not in str(form.scale) and form.scale.dtype is torch.uint8
    outer = torch.full((1, 1), 0.0071, device="cuda") if two else None
    _kept[fmt, n, k, seed] = Weight(codes, scale, zero, outer)
    return _kept[fmt, n, k, seed]


def nbytes(w: Weight) -> int:
    return sum(part.nbytes for part in w if part is not None)


def run(x, w: Weight, fmt: str, choice: WayChoice | None, input_fmt: str = "", bias=None):
    """One call by a given choice, without looking one up."""
    from blockscale.kernels.cuda.linear import multiply
    from blockscale.kernels.cuda.matmul.operands import read

    values = read(x, Quantizer(None, None, None, input_fmt))
    return multiply(values, w, fmt, bias, x.dtype, choice)


def timed(calls: list, budget: float = 0.012) -> float:
    """Median seconds of one call, all of them in a CUDA graph that is replayed."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls:
            call()
        stream.synchronize()
        start = time.perf_counter()
        calls[0]()
        stream.synchronize()
        one = time.perf_counter() - start
        repeats = max(1, min(10, int(0.002 / max(one, 1e-5) / len(calls))))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(repeats):
                for call in calls:
                    call()
    graph.replay()
    times = []
    count = max(3, min(9, int(budget / max(one * repeats * len(calls), 1e-5))))
    for _ in range(count):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        events[0].record()
        graph.replay()
        events[1].record()
        torch.cuda.synchronize()
        times.append(events[0].elapsed_time(events[1]) / 1e3)
    return sorted(times)[count // 2] / repeats / len(calls)


def copied(source, to) -> float:
    """Median seconds of a device copy, outside a graph: there it would not be a kernel."""
    times = []
    for _ in range(20):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        events[0].record()
        to.copy_(source)
        events[1].record()
        torch.cuda.synchronize()
        times.append(events[0].elapsed_time(events[1]) / 1e3)
    return sorted(times)[10]


def compile_one(job: tuple) -> str:
    """In another process: one candidate run once, so that Triton's cache has it."""
    fmt, n, k, rows, choice, input_fmt = job
    assert available() is None
    try:
        x = torch.randn(rows, k, device="cuda").bfloat16()
        run(x, made(fmt, n, k), fmt, choice, input_fmt)
        torch.cuda.synchronize()
    except triton.runtime.errors.OutOfResources:
        return ""
    except Exception as error:  # reported with its job; the others go on
        return f"{job}: {error!r}"[:300]
    return ""


def jobs(formats: list[str], shapes: list, rows: list[int]) -> list[tuple]:
    """(what, weight, input, n, k, m) of each case."""
    listed = [
        ("weight", str(parse(f)), "", n, k, m) for f in formats for n, k in shapes for m in rows
    ]
    for wf, xf, what in PAIRS:
        listed += [(what, str(parse(wf)), str(parse(xf)), n, k, m) for n, k in shapes for m in rows]
    for wf, xf in BOTH:
        listed += [
            ("weight", str(parse(wf)), str(parse(xf)), n, k, m)
            for n, k in shapes
            for m in rows
            if m == 4096 and n == k
        ]
    return listed


def compile_all(cases: list[tuple], workers: int) -> None:
    seen = {}
    for what, fmt, xf, n, k, m in cases:
        r = reading(fmt, k) if what == "weight" else None
        for choice in to_measure(ProductCall(what, fmt, m, n, k, True), r):
            own = choice.way in ("tile", "few", "fused") or what != "weight"  # kernels
            if not own and choice != to_measure(ProductCall(what, fmt, m, n, k, True), r)[0]:
                continue
            seen.setdefault((fmt, k, choice, what), (fmt, n, k, m if m < 1024 else 256, choice, xf))
    print(f"{len(seen)} candidates to compile", flush=True)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for message in pool.map(compile_one, list(seen.values()), chunksize=2):
            if message:
                print(message, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--formats", default=DEFAULT)
    parser.add_argument("--rows", default="1,16,32,64,128,256,512,1024,2048,4096,8192")
    parser.add_argument("--shapes", default="28672x8192,8192x8192")
    parser.add_argument("--seconds", type=float, default=300)
    args = parser.parse_args()
    deadline = time.monotonic() + args.seconds
    assert available() is None, available()
    formats = args.formats.split(",")
    shapes = [tuple(int(n) for n in s.split("x")) for s in args.shapes.split(",")]
    rows = [int(m) for m in args.rows.split(",")]
    cases = jobs(formats, shapes, rows)
    start = time.monotonic()
    _kept.clear()
    torch.cuda.empty_cache()
    compile_all(cases, 14)
    print(f"compiled after {time.monotonic() - start:.0f} s", flush=True)
    measure(cases, args.out, deadline)


def measure(cases: list[tuple], out: Path, deadline: float) -> None:
    device = torch.cuda.get_device_name(0)
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    to = torch.empty_like(source)
    copy = 2 * source.nbytes / copied(source, to)
    del source, to
    print(f"{device}: copy {copy / 1e9:.0f} GB/s", flush=True)
    table, log, floats = {}, [], {}
    for what, fmt, xf, n, k, m in sorted(
        cases, key=lambda c: (c[5] not in (1, 16, 4096), c[5], -c[3])
    ):
        if time.monotonic() > deadline:
            print("out of time", flush=True)
            break
        x = torch.randn(m, k, device="cuda").bfloat16()
        if (n, k, m) not in floats:
            dense = torch.randn(n, k, device="cuda").bfloat16() * 0.01
            floats[n, k, m] = timed([partial(F.linear, x, dense)])
            del dense
        r = reading(fmt, k) if what == "weight" else None
        copies = 1 + int(150e6 // (n * k * parse(fmt).bits // 8)) if m <= 256 else 1
        ws = [made(fmt, n, k, s) for s in range(copies)]
        results = []
        for choice in to_measure(ProductCall(what, fmt, m, n, k, True), r):
            try:
                spent = timed([partial(run, x, w, fmt, choice, xf) for w in ws])
            except triton.runtime.errors.OutOfResources:
                continue
            results.append((spent, choice))
        if not results:
            continue
        results.sort(key=lambda item: item[0])
        best, choice = results[0]
        flat = choice.entry()
        if what != "weight" or not xf:
            table.setdefault(tune.key(what, fmt, device), {})[f"{m},{n},{k}"] = flat
        log.append({"what": what, "weight": fmt, "input": xf, "m": m, "n": n, "k": k,
                    "seconds": best, "bf16": floats[n, k, m], "copy": copy, "bytes": nbytes(ws[0]),
                    "all": [(s, *c.entry()) for s, c in results]})  # fmt: skip
        part, times = nbytes(ws[0]) / best / copy, best / floats[n, k, m]
        line = f"{what:6} {fmt:26} {xf and 'both':4} {n}x{k} m={m:<5} {best * 1e6:8.1f} us"
        print(f"{line}  of copy {part:.2f}  x bf16 {times:.2f}  {flat}", flush=True)
        out.mkdir(parents=True, exist_ok=True)
        (out / "tuned.json").write_text(json.dumps(table, indent=0, sort_keys=True) + "\n")
        (out / "linear.json").write_text(json.dumps(log))
        if len(_kept) > 12:
            _kept.clear()


def first_call() -> None:
    """Seconds of the first calls in a process, whose kernels Triton's cache may have."""
    assert available() is None
    fmt, x = str(parse("mxfp4")), torch.randn(4096, 8192, device="cuda").bfloat16()
    w = made(fmt, 8192, 8192)
    calls = {f"linear {m}": partial(linear, x[:m], *w, None, fmt, None, None, None, "", None)
             for m in (1, 16, 256, 4096)}  # fmt: skip
    calls |= {
        "quantize": lambda: bs.quantize(x, fmt),
        "fake_quantize": lambda: bs.fake_quantize(x, fmt),
    }
    torch.cuda.synchronize()
    for name, call in calls.items():
        spent = []
        for _ in range(2):
            start = time.perf_counter()
            call()
            torch.cuda.synchronize()
            spent.append(time.perf_counter() - start)
        print(f"{name}: first {spent[0]:.4f} s, second {spent[1]:.4f} s", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["first-call"]:
        sys.exit(first_call())
    with bs.use("cuda"):
        sys.exit(main())
