# SPDX-License-Identifier: BSD-3-Clause
"""Speed of the WebGPU kernels on tensors that stay there: python -m benchmarks.webgpu [--write]

Each kernel takes turns with a WGSL copy that moves as many bytes and, where torch has CUDA, with
our CUDA kernel on the same numbers. Times are the devices' own. A figure is the bytes that must
move over the time, relative to the copy's and to CUDA's.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

import blockscale as bs
from benchmarks.record import record
from blockscale.bench import requests
from blockscale.bench.machine import last_cache
from blockscale.core.operand import Operand, Quantizer
from blockscale.core.parse import parse
from blockscale.kernels.registry import supporting, unavailable
from blockscale.kernels.webgpu.gpu.device import GpuError, gpu
from blockscale.kernels.webgpu.gpu.launch import Stopwatch, Window, launch
from blockscale.kernels.webgpu.gpu.memory import Memory, allocate, release, upload
from blockscale.kernels.webgpu.gpu.shader import Shader
from blockscale.kernels.webgpu.torch_device import WebGPUTensor
from blockscale.ops import primitives as P
from blockscale.ops.attention import cached_attention
from blockscale.ops.linear import linear

Call = Callable[[], Any]
PLAIN, NARROW, HARD = 0.90, 0.80, 0.70  # of a copy
FORMATS = {  # name: the share of a copy that is promised
    "mxfp8": PLAIN, "mxint8": PLAIN, "bfp8": PLAIN, "int8:group32:fp32": PLAIN,
    "int8_channel": PLAIN, "int8_token": PLAIN, "int8:group128:fp32": PLAIN,
    "uint8:group32:fp32:asym": PLAIN, "mxfp4": NARROW, "mxfp6": NARROW, "int4": NARROW,
    "int4:group32:fp32": NARROW, "nvfp4": HARD, "ternary": HARD, "binary": HARD, "nf4": HARD,
    "int8:group32:e8m0/floor:stochastic": HARD, "e2m1:group32:e8m0/floor:stochastic": HARD,
    "int8:tile32x32:fp32": PLAIN, "int8:group32@0:fp32": PLAIN,
}  # fmt: skip
LINEAR = ("int8_channel", "mxfp8", "int4", "mxfp4", "nvfp4")
OF_CUDA = 0.85
ONE_ROW = 0.60  # of a copy, in the weight's bytes
LAYER = (28672, 8192)
CACHES = ("int8_token", "e4m3:token:fp32", "mxfp8", "int4:group32:fp16", "mxfp4", "nvfp4_token")
ATTENTION = 0.50  # of a copy, in the bytes of codes and scales: a goal
HEADS, SHARED, FEATURES, RECENT = 32, 8, 128, 16  # of a Llama's layer
PATIENCE = 4.0  # seconds that a GPU is given to raise its clock; a quarter is given in any case
NAMED = {torch.float32: "fp32", torch.bfloat16: "bf16"}


@dataclass(frozen=True)
class Case:
    """What is timed. bytes: those that must move; promised: the share of a copy's speed."""

    name: str
    bytes: int
    promised: float
    ours: Call
    cuda: Call | None


class OnWebGPU:
    """The WebGPU device's time for some calls in a row, at the clock that lasting work has.

    A GPU that idles lowers its clock (an H100 from 1980 to 345 MHz) and takes a second of work to
    raise it; whatever computes is slow beside a copy until then. Recording a call takes Python as
    long as the GPU takes for several. So it is kept busy while calls are recorded (`__call__`), and
    for a while after a pause (`awake`).
    """

    def __init__(self) -> None:
        self._watch = Stopwatch()
        self._least = float("inf")  # seconds of work that only takes time
        self._turns = 0 if gpu().software else 1 << 18

    def _work(self) -> None:
        """Work that only takes time."""
        buffers = {"result": _buffers(256)[0]}
        launch(Shader("kernels/probe/busy"), buffers, {"turns": self._turns}, 2048, bake=False)

    def awake(self) -> None:
        """Work until that is as fast as it ever was: after a pause, while shaders were compiled."""
        begun = time.perf_counter()
        while self._turns and time.perf_counter() - begun < PATIENCE:
            self._watch.start()
            for _ in range(4):
                self._work()
            took = self._watch.stop() / 4
            self._least = min(self._least, took)
            if took < 1.02 * self._least and time.perf_counter() - begun > PATIENCE / 4:
                return

    def __call__(self, call: Call, times: int) -> float:
        """Seconds of one call."""
        if self._turns:
            self._work()
        self._watch.start()
        for _ in range(times):
            call()
        return self._watch.stop() / times


def on_cuda(call: Call, times: int) -> float:
    """Seconds of one call, by CUDA's own clock; the GPU is kept busy while calls are sent."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(2_000_000)
    start.record()
    for _ in range(times):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / times / 1e3


def copying(nbytes: int) -> Call:
    """A WGSL copy that reads and writes `nbytes` in all."""
    half = max(nbytes // 2 // 16, 1) * 16
    source, result = _buffers(1 << (half - 1).bit_length())
    shader, count = Shader("kernels/copies/words"), half // 16
    bound: dict[str, Memory | Window] = {
        "source": Window(source, 0, half), "result": Window(result, 0, half)
    }  # fmt: skip
    return partial(launch, shader, bound, {"count": count}, -(-count // 256))


@cache
def _buffers(nbytes: int) -> tuple[Memory, Memory]:
    return allocate(nbytes), allocate(nbytes)


def there(x: Tensor | None) -> Any:
    """A tensor on the device "webgpu"."""
    return None if x is None else WebGPUTensor(upload(x.cpu()), tuple(x.shape), x.dtype)


def kernel(op: str, spellings: tuple[str, ...], *arguments: Any) -> Call | None:
    """Our WebGPU kernel with its arguments; None where there is none."""
    found = supporting(op, "webgpu", spellings, arguments)
    return None if found is None else partial(found.run, *arguments)


def numbers(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    generator = torch.Generator(device).manual_seed(0)
    return torch.randn(shape, generator=generator, device=device).to(dtype)


def primitives(shape: tuple[int, int], cuda: bool, dtypes: Sequence[str]) -> Iterator[Case | str]:
    """quantize (with choice of the scale), dequantize, fake_quantize; a name has no kernel."""
    for dtype in (each for each, name in NAMED.items() if name in dtypes):
        x = numbers(shape, dtype, "cuda" if cuda else "cpu")
        y = there(x)
        for name in FORMATS:
            yield from _of_format(name, x, y, cuda)
        del x, y
        release()


def _of_format(name: str, x: Tensor, y: Tensor, cuda: bool) -> Iterator[Case | str]:
    fmt = str(parse(name))
    drawn = parse(name).rounding == "stochastic"
    label, promised = f"{name} {NAMED[x.dtype]}", FORMATS[name]
    seed = torch.tensor(7) if drawn else None
    by = Quantizer(None, None, None, fmt, seed)
    quantize = kernel("choose_quantize", (fmt,), y, fmt, seed)
    if quantize is None:
        yield f"{label}: no kernel"
        return
    try:
        made = quantize()
    except (GpuError, ValueError, TypeError) as error:
        yield f"{label}: {error}"
        return
    size = partial(_bytes, name, x)
    yield Case(
        f"quantize {label}", size("quantize"), promised, quantize,
        partial(P.choose_quantize, x, fmt, None if seed is None else seed.cuda()) if cuda else None,
    )  # fmt: skip
    fake = kernel("fake_quantize", (fmt,), y, by)
    if fake is not None:
        on = by if seed is None or not cuda else by._replace(seed=seed.cuda())
        call = partial(P.fake_quantize, x, on) if cuda else None
        yield Case(f"fake_quantize {label}", size("fake_quantize"), promised, fake, call)
    if not drawn:
        stored = _operand(made, fmt, x.shape[-1])
        back = kernel("dequantize", (fmt,), stored, x.dtype)
        call = None
        if cuda:
            mine = _operand(P.choose_quantize(x, fmt, None), fmt, x.shape[-1])
            call = partial(P.dequantize, mine, x.dtype)
        if back is not None:
            yield Case(f"dequantize {label}", size("dequantize"), promised, back, call)


def _operand(parts: list[Tensor], fmt: str, size: int) -> Operand:
    packed, *qparams = parts
    named = P.from_list(qparams, parse(fmt))
    return Operand(packed, named.scale, named.zero_point, named.outer, fmt, size)


def _bytes(name: str, x: Tensor, op: str) -> int:
    fmt, shape = parse(name), tuple(x.shape)
    cache_bytes = last_cache("cuda" if x.is_cuda else "cpu")
    times = 1 if op == "dequantize" else requests.reads(fmt, shape, x.dtype, cache_bytes)
    return requests.traffic(op, fmt, shape, x.dtype, times)


def layers(shape: tuple[int, int], cuda: bool) -> Iterator[Case | str]:
    """Weight-only linear layers at one row, whose time is that of the weight's bytes."""
    n, k = shape
    device = "cuda" if cuda else "cpu"
    weight = numbers((n, k), torch.float32, device)
    row = numbers((1, k), torch.float32, device)
    with bs.use("cuda" if cuda else "auto"):
        for name in LINEAR:
            fmt = str(parse(name))
            mine = _operand(P.choose_quantize(weight, fmt, None), fmt, k)
            parts = (mine.codes, mine.scale, mine.zero_point, mine.outer)
            stored = Operand(*(there(part) for part in parts), fmt, k)
            none = Quantizer(None, None, None, "")
            ours = kernel("linear", (fmt,), there(row), stored, None, none)
            if ours is None:
                yield f"linear {name}: no kernel"
                continue
            size = sum(part.nbytes for part in parts if part is not None)
            call = partial(linear, row, mine, None, none) if cuda else None
            yield Case(f"linear {name} 1x{k}x{n}", size, ONE_ROW, ours, call)


def caches(tokens: int, cuda: bool) -> Iterator[Case | str]:
    """Attention of one new token over a cache in codes, whose time is that of the codes' bytes."""
    device = "cuda" if cuda else "cpu"
    query = numbers((1, HEADS, 1, FEATURES), torch.float32, device)
    recent = numbers((1, SHARED, RECENT, FEATURES), torch.float32, device)
    past = numbers((1, SHARED, tokens, FEATURES), torch.float32, device)
    more = (None, FEATURES**-0.5, None)
    with bs.use("cuda" if cuda else "auto"):
        for name in CACHES:
            fmt, label = str(parse(name)), f"attention {name} {tokens}"
            mine = _operand(P.choose_quantize(past, fmt, None), fmt, FEATURES)
            parts = (mine.codes, mine.scale, mine.zero_point, mine.outer)
            stored = Operand(*(there(part) for part in parts), fmt, FEATURES)
            call = (there(query), stored, stored, there(recent), there(recent), *more)
            ours = kernel("cached_attention", (fmt, fmt), *call)
            if ours is None:
                yield f"{label}: no kernel"
                continue
            size = 2 * sum(part.nbytes for part in parts if part is not None)
            beside = partial(cached_attention, query, mine, mine, recent, recent, *more)
            yield Case(label, size, ATTENTION, ours, beside if cuda else None)


def measured(case: Case, clock: OnWebGPU, rounds: int, share: float) -> dict[str, Any]:
    """Figures of a case: contestants take turns, every other round backwards."""
    calls = {"ours": (case.ours, clock), "copy": (copying(case.bytes), clock)}
    if case.cuda is not None:
        calls["cuda"] = (case.cuda, on_cuda)  # type: ignore[assignment]
    times: dict[str, int] = {}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for name, (call, timer) in calls.items():
        timer(call, 1)  # compiles
        times[name] = max(1, min(50, round(share / max(timer(call, 1), 1e-9))))
    order = list(calls)
    clock.awake()
    for _ in range(rounds):
        for name in order:
            call, timer = calls[name]
            if case.cuda is not None:
                torch.cuda.synchronize()
            samples[name].append(timer(call, times[name]))
        order.reverse()
    seconds = {name: median(each) for name, each in samples.items()}
    told: dict[str, Any] = {
        "bytes": case.bytes,
        "microseconds": round(seconds["ours"] * 1e6, 1),
        "gigabytes_per_second": round(case.bytes / seconds["ours"] / 1e9, 1),
        "of_copy": round(seconds["copy"] / seconds["ours"], 3),
    }
    if not gpu().software:
        told["promised_of_copy"] = case.promised
    if "cuda" in seconds:
        told["of_cuda"] = round(seconds["cuda"] / seconds["ours"], 3)
    return told


def floor(shape: tuple[int, int], clock: OnWebGPU) -> dict[str, float]:
    """fp32 -> int8 by groups beside what only moves those bytes, and a call's fixed cost."""
    fmt = "int8:group32:fp32"
    x = numbers(shape, torch.float32, "cpu")
    y = there(x)
    with bs.use("reference"):
        scale = there(P.choose_qparams(x, fmt)[0])
    given = kernel("quantize", (fmt,), y, Quantizer(scale, None, None, fmt))
    if given is None:
        return {}
    count = x.numel() // 4
    result = allocate(x.numel())
    bound = {"source": y.memory, "result": result}
    moving = partial(
        launch, Shader("kernels/copies/bytes"), bound, {"count": count}, -(-count // 256)
    )
    calls: dict[str, list[float]] = {"ours": [], "floor": []}
    for _ in range(9):
        for name, call in (("ours", given), ("floor", moving)):
            calls[name].append(clock(call, 1))
    small = there(numbers((4, 64), torch.float32, "cpu"))
    with bs.use("reference"):
        little = there(P.choose_qparams(numbers((4, 64), torch.float32, "cpu"), fmt)[0])
    few = kernel("quantize", (fmt,), small, Quantizer(little, None, None, fmt))
    assert few is not None
    return {
        "milliseconds": round(median(calls["ours"]) * 1e3, 2),
        "floor_milliseconds": round(median(calls["floor"]) * 1e3, 2),
        "of_floor": round(median(calls["ours"]) / median(calls["floor"]), 3),
        "fixed_milliseconds_a_call": round(_fixed(few) * 1e3, 3),
    }


def _fixed(call: Call, times: int = 100) -> float:
    """Seconds of the processor for a call that computes next to nothing, given to the device."""
    for _ in range(10):
        call()
    samples = []
    for _ in range(5):
        gpu().flush()
        start = time.perf_counter()
        for _ in range(times):
            call()
            gpu().flush()
        samples.append((time.perf_counter() - start) / times)
    return median(samples)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=270, help="no case is begun after them")
    parser.add_argument("--side", type=int, help="of the square matrix; 16384, in software 4096")
    parser.add_argument("--dtypes", default="fp32,bf16")
    parser.add_argument("--alone", action="store_true", help="not beside CUDA, which takes longer")
    parser.add_argument("--write", action="store_true", help="keep the figures")
    arguments = parser.parse_args()
    reason = unavailable("webgpu")
    if reason is not None:
        raise SystemExit(f"no WebGPU here: {reason}")
    cuda = torch.cuda.is_available() and not gpu().software and not arguments.alone
    dtypes = arguments.dtypes.split(",")
    side = arguments.side or (4096 if gpu().software else 16384)
    layer = (4096, 4096) if gpu().software else LAYER
    begun, clock = time.perf_counter(), OnWebGPU()
    figures: dict[str, Any] = {"adapter": gpu().name, "cuda_beside": cuda, "cases": {}}
    print(figures["adapter"], "beside CUDA" if cuda else "", flush=True)
    figures["int8 by groups"] = floor((4096, 4096), clock)
    print(figures["int8 by groups"], flush=True)
    every = (layers(layer, cuda), caches(1024 if gpu().software else 32768, cuda),
             primitives((side, side), cuda, dtypes))  # fmt: skip
    for each in (c for part in every for c in part):
        if isinstance(each, str):
            print(each, flush=True)
            figures.setdefault("missing", []).append(each)
        elif arguments.only in each.name and time.perf_counter() - begun < arguments.seconds:
            try:
                told = measured(each, clock, arguments.rounds, 0.02)
            except (GpuError, ValueError, TypeError) as error:  # the others are still measured
                figures.setdefault("failed", {})[each.name] = str(error)
                print(f"FAILED {each.name}: {error}", flush=True)
                continue
            figures["cases"][each.name] = told
            met = told["of_copy"] >= each.promised and told.get("of_cuda", 1.0) >= OF_CUDA
            mark = "" if gpu().software else "ok  " if met else "MISS"
            print(f"{mark} {each.name:50} {told}", flush=True)
        elif arguments.only in each.name:
            figures.setdefault("out of time", []).append(each.name)
    figures["seconds"] = round(time.perf_counter() - begun, 1)
    if arguments.write:
        kind = "software" if gpu().software else "gpu"
        print(record(f"webgpu_{kind}", figures))


if __name__ == "__main__":
    main()
