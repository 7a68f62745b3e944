# SPDX-License-Identifier: BSD-3-Clause
"""What an invocation of the fast path takes, measured: python -m benchmarks.webgpu_sweep

Every setting that a format, a dtype and an op can have takes turns with a WGSL copy that moves as
many bytes; figures are shares of that copy's speed. A setting whose bits differ from those of the
slower kernels is named and left out. primitives/plan.py and fast_path_decode.py hold
what won.
"""

import argparse
import json
import time
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import torch

from benchmarks.webgpu import Call, OnWebGPU, _operand, copying, numbers, there
from blockscale.bench import requests
from blockscale.core.operand import Quantizer
from blockscale.core.parse import parse
from blockscale.core.scales import TwoLevel
from blockscale.kernels.registry import supporting, unavailable
from blockscale.kernels.webgpu.gpu.device import GpuError, gpu
from blockscale.kernels.webgpu.gpu.memory import download, release
from blockscale.kernels.webgpu.primitives import fast_path
from blockscale.kernels.webgpu.primitives import plan as plans
from blockscale.kernels.webgpu.primitives.form import form
from blockscale.kernels.webgpu.primitives.plan import Settings, lines

SMALL, LARGE = (1024, 4096), (8192, 8192)
FORMATS = (
    "mxfp8", "mxint8", "bfp8", "mxfp6", "mxfp4", "int8:group32:fp32", "int8:group128:fp32", "int4",
    "int4:group32:fp32", "uint8:group32:fp32:asym", "int8_token", "e4m3:token:fp32", "nvfp4", "nf4",
    "int8:tile32x32:fp32", "e4m3:tile128x128:fp32", "int8:group32@0:fp32",
    "int8:group32:e8m0/floor:stochastic", "e2m1:group32:e8m0/floor:stochastic", "ternary", "binary",
)  # fmt: skip
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
UNITS, BLOCKS, GROUPS = (1, 2, 4, 8), (1,), (256,)
Name = tuple[int, ...]


def settings(f: Any, dtype: torch.dtype, what: str) -> Iterator[Settings]:
    """All that a tensor can be taken with."""
    for units, blocks, group, together in product(UNITS, BLOCKS, GROUPS, (False, True)):
        given = Settings(units, blocks, group, together)
        found = None if together and what != "codes" else lines(f, dtype, LARGE, what, given)
        if found is not None and (group == GROUPS[0] or found.team > 32) and units * blocks <= 16:
            yield given


def call(fmt: str, y: Any, what: str) -> Call:
    """The op on a tensor that is on the device."""
    seed = torch.tensor(7) if parse(fmt).rounding == "stochastic" else None
    if what == "codes":
        found = supporting("choose_quantize", "webgpu", (fmt,), (y, fmt, seed))
        assert found is not None
        return partial(found.run, y, fmt, seed)
    by = Quantizer(None, None, None, fmt, seed)
    found = supporting("fake_quantize", "webgpu", (fmt,), (y, by))
    assert found is not None
    return partial(found.run, y, by)


def back(fmt: str, y: Any) -> Call:
    """dequantize of what the tensor becomes."""
    stored = _operand(call(fmt, y, "codes")(), fmt, y.shape[-1])
    found = supporting("dequantize", "webgpu", (fmt,), (stored, y.dtype))
    assert found is not None
    return partial(found.run, stored, y.dtype)


def bits(made: Any) -> list[torch.Tensor]:
    parts = made if isinstance(made, list) else [made]
    return [download(part.memory, tuple(part.shape), part.dtype) for part in parts]


def moved(name: str, x: torch.Tensor, op: str) -> int:
    """Bytes that must move: x is read twice where all of it shares a scale."""
    fmt = parse(name)
    times = 2 if isinstance(fmt.scale, TwoLevel) and op != "dequantize" else 1
    return requests.traffic(op, fmt, tuple(x.shape), x.dtype, times)


def equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(
        torch.equal(p.view(torch.uint8), q.view(torch.uint8)) for p, q in zip(a, b, strict=True)
    )


def timed(calls: dict[str, Call], nbytes: int, clock: OnWebGPU, rounds: int) -> dict[str, float]:
    """Shares of a copy's speed, by name; calls have been compiled, and take turns."""
    calls = calls | {"copy": copying(nbytes)}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    clock(calls["copy"], 1)
    clock.awake()
    for _ in range(rounds):
        for name, each in calls.items():
            samples[name].append(clock(each, 10))
    copy = median(samples.pop("copy"))
    return {name: round(copy / median(each), 3) for name, each in samples.items()}


def encoding(
    name: str, dtype: torch.dtype, what: str, clock: OnWebGPU, rounds: int
) -> dict[str, Any]:
    """Shares by settings, "now" and "before" among them."""
    fmt = str(parse(name))
    small, large = numbers(SMALL, dtype, "cpu"), numbers(LARGE, dtype, "cpu")
    y, z = there(small), there(large)
    nbytes = moved(name, large, "quantize" if what == "codes" else "fake_quantize")

    def planned(given: Settings | None, *arguments: Any) -> Any:
        own = arguments[3] == what
        return lines(*arguments[:4], given) if given or not own else None

    ways: dict[str, Any] = {"before": mock.patch.multiple(plans, lines=lambda *_: None)}
    columns = mock.patch.multiple(plans, columns=lambda *_: None)
    for given in settings(form(fmt), dtype, what):
        key = f"{given.units}/{given.blocks}/{given.group}{'t' if given.together else ''}"
        ways[key] = mock.patch.multiple(plans, lines=partial(planned, given))

    def run(way: str) -> Any:
        if way == "now":
            return call(fmt, z, what)()
        with ways[way], columns:
            return call(fmt, z, what)()

    with ways["before"], columns:
        right = bits(call(fmt, y, what)())
    found: dict[str, Any] = {}
    for way, patched in list(ways.items()):
        try:
            with patched, columns:
                if not equal(bits(call(fmt, y, what)()), right):
                    raise GpuError("WRONG")
            run(way)
        except GpuError as error:
            found[way] = str(error)[:80]
            del ways[way]
    run("now")
    calls = {way: partial(run, way) for way in ("now", *ways)}
    return found | timed(calls, nbytes, clock, rounds)


def decoding(name: str, dtype: torch.dtype, clock: OnWebGPU, rounds: int) -> dict[str, Any]:
    """Shares by units."""
    fmt = str(parse(name))
    large = numbers(LARGE, dtype, "cpu")
    small_call = back(fmt, there(numbers(SMALL, dtype, "cpu")))
    large_call, nbytes = back(fmt, there(large)), moved(name, large, "dequantize")

    def run(each: int | None, one: Call) -> Any:
        with mock.patch.object(fast_path, "units", lambda *_: each):
            return one()

    ways = [1, 2, 4, 8] if fast_path.fits(form(fmt), LARGE, dtype) else []
    right = bits(run(None, small_call))
    found: dict[str, Any] = {}
    calls = {"now": large_call, "before": partial(run, None, large_call)}
    for each in ways:
        if equal(bits(run(each, small_call)), right):
            calls[str(each)] = partial(run, each, large_call)
        else:
            found[str(each)] = "WRONG"
    for one in calls.values():
        one()
    return found | timed(calls, nbytes, clock, rounds)


def best(found: dict[str, Any]) -> str:
    figures = {
        k: v for k, v in found.items() if isinstance(v, float) and k not in ("now", "before")
    }
    top = sorted(figures.items(), key=lambda kv: -kv[1])[:5]
    wrong = [k for k, v in found.items() if not isinstance(v, float)]
    return "  ".join(f"{k} {v:.2f}" for k, v in top) + (f"  WRONG {wrong}" if wrong else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", default="", help="formats whose names contain one of these, by commas"
    )
    parser.add_argument("--what", default="codes,values,decode")
    parser.add_argument("--dtypes", default="fp32,bf16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=400, help="no case is begun after them")
    parser.add_argument("--output", type=Path, help="a file of JSON")
    arguments = parser.parse_args()
    reason = unavailable("webgpu")
    if reason is not None:
        raise SystemExit(f"no WebGPU here: {reason}")
    begun, clock = time.perf_counter(), OnWebGPU()
    figures: dict[str, Any] = {"adapter": gpu().name}
    wanted = arguments.only.split(",")
    for what in arguments.what.split(","):
        for label in arguments.dtypes.split(","):
            for name in (n for n in FORMATS if any(part in n for part in wanted)):
                if time.perf_counter() - begun > arguments.seconds:
                    print("out of time:", what, label, name)
                    continue
                case = f"{what} {name} {label}"
                try:
                    if what == "decode":
                        found = decoding(name, DTYPES[label], clock, arguments.rounds)
                    else:
                        found = encoding(name, DTYPES[label], what, clock, arguments.rounds)
                except Exception as error:  # the others are still measured
                    print(f"FAILED {case}: {error!r}"[:600], flush=True)
                    continue
                figures[case] = found
                shares = f"before {found['before']:.2f} now {found['now']:.2f}"
                print(f"{case:48} {shares} | {best(found)}", flush=True)
                release()
                if arguments.output:
                    arguments.output.write_text(json.dumps(figures, indent=1))
    print(round(time.perf_counter() - begun), "s")


if __name__ == "__main__":
    main()
