# SPDX-License-Identifier: BSD-3-Clause
"""Speed of the CUDA primitives beside a copy: python -m benchmarks.gpu_primitives [--write]

Ratios of bytes moved (input read once, codes and scales or values written) over time, to those of
a device copy of the same run. `--sweep` tries launch settings; `--write` keeps the figures.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import blockscale as bs
from benchmarks.record import record
from blockscale.core.operand import Operand, Quantizer
from blockscale.kernels.cuda.primitives import plan
from blockscale.kernels.cuda.primitives.tiling import BlockedMatrix
from blockscale.ops import primitives as P

N = 16384
SIDES = (N, N)
SIDES_3 = (512, 512, N * N // 512**2)
CHOOSE = [
    "mxfp8", "mxfp4", "mxfp6", "mxfp6_e2m3", "mxint8", "nvfp4", "bfp8", "int8:group128:fp32",
    "int4", "int8_token", "int8:group32@0:fp32", "e2m1:group32@0:e8m0/floor", "int8:tile16x32:fp32",
    "e4m3:tile128x128:fp32", "int8_channel", "int8", "uint4", "int8:group64:fp32:stochastic",
    "e2m1:group32:e8m0/floor:stochastic", "ternary", "binary", "log4", "int8:block4x8x16:fp32",
    "int4:block4x4x8:fp32", "nvfp4_e5m3",
]  # fmt: skip
GIVEN = ["mxfp8", "mxfp4", "int8:group128:fp32", "int8", "int8_token", "mxfp6"]
BOTH = [
    "mxfp8", "mxfp4", "int8:group128:fp32", "int8_token", "mxfp6", "nvfp4", "ternary", "binary",
    "log4", "int8:block4x8x16:fp32", "int4:block4x4x8:fp32", "nvfp4_e5m3",
]  # fmt: skip
SETTINGS = [(1024, 2), (2048, 2), (2048, 4), (4096, 4), (8192, 4), (4096, 8), (8192, 8), (16384, 8)]


def milliseconds(run: Callable[[], object], repeats: int = 5, within: int = 10) -> float:
    """The median of event timings of some runs in a row, so that launching hides behind them."""
    for _ in range(3):
        run()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(within):
            run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / within)
    return sorted(times)[repeats // 2]


def moved(*tensors: Tensor) -> int:
    return sum(t.nbytes for t in tensors)


def shaped(x: Tensor, fmt: str) -> Tensor:
    """x as a tensor of three dimensions for a block over so many."""
    return x.view(SIDES_3) if "block" in fmt else x


def cases(dtypes: list[torch.dtype]) -> Iterator[tuple[str, Callable[[], object], int]]:
    """(name, what to run, bytes it must move)."""
    for dtype in dtypes:
        every = torch.randn(SIDES, device="cuda", dtype=dtype)
        kind = str(dtype).removeprefix("torch.")
        for fmt in CHOOSE:
            x = shaped(every, fmt)
            seed = torch.tensor(7, device="cuda") if "stochastic" in fmt else None
            quantized = P.choose_quantize(x, fmt, seed)
            run = lambda x=x, fmt=fmt, seed=seed: P.choose_quantize(x, fmt, seed)  # noqa: E731
            yield f"quantize {fmt} {kind}", run, moved(x, *quantized)
        for fmt in GIVEN:
            x = every
            packed, *parts = P.choose_quantize(x, fmt, None)
            by = Quantizer(parts[0], None, None, fmt)
            run = lambda x=x, by=by: P.quantize(x, by)  # noqa: E731
            yield f"given {fmt} {kind}", run, moved(x, packed, *parts)
        for fmt in BOTH:
            x = shaped(every, fmt)
            packed, *parts = P.choose_quantize(x, fmt, None)
            outer = parts[1] if len(parts) > 1 else None
            stored = Operand(packed, parts[0], None, outer, fmt, x.shape[-1])
            yield (
                f"dequantize {fmt} {kind}",
                lambda stored=stored, dtype=dtype: P.dequantize(stored, dtype),
                moved(x, packed, *parts),
            )
            none = (None, None, None)
            run = lambda x=x, fmt=fmt, none=none: P.fake_quantize(x, Quantizer(*none, fmt, None))  # noqa: E731
            yield f"fake_quantize {fmt} {kind}", run, moved(x, x)


def copy_speed() -> float:
    """Bytes a millisecond of a device copy, read and written."""
    x = torch.randn(SIDES, device="cuda")
    y = torch.empty_like(x)
    return moved(x, y) / milliseconds(lambda: y.copy_(x))


def with_setting(elements: int, warps: int) -> None:
    """Everything that is launched from now on, where blocks are small."""

    def setting(at: BlockedMatrix, *, has_scale: bool, merged: bool, **more: Any) -> plan.Setting:
        if merged or (not has_scale and at.bm * at.bk > elements):
            return original(at, has_scale=has_scale, merged=merged, **more)
        return plan.Setting(elements, warps)

    plan.setting = setting
    plan.plan.cache_clear()


original = plan.setting


def sweep(names: list[str], warming: tuple[int, int] | None) -> dict[str, dict[str, float]]:
    """Ratios under each launch setting; warming: only compile, every n-th setting from the i-th."""
    ratios: dict[str, dict[str, float]] = {}
    copied = copy_speed()
    for number, (elements, warps) in enumerate(SETTINGS):
        if warming and number % warming[1] != warming[0]:
            continue
        with_setting(elements, warps)
        for name, run, size in cases([torch.float32, torch.bfloat16]):
            if names and not any(n in name for n in names):
                continue
            spent = milliseconds(run, *((1, 1) if warming else (5, 4)))
            ratios.setdefault(name, {})[f"{elements}/{warps}"] = round(size / spent / copied, 3)
    return ratios


def overhead() -> dict[str, float]:
    """Microseconds of a call on a small tensor."""
    import time

    x, times = torch.randn(64, 512, device="cuda"), {}
    for fmt in ("mxfp4", "int8_token", "nvfp4"):
        for name, run in (
            ("choose_quantize", lambda f=fmt: P.choose_quantize(x, f, None)),
            (
                "fake_quantize",
                lambda f=fmt: P.fake_quantize(x, Quantizer(None, None, None, f, None)),
            ),
        ):
            for _ in range(20):
                run()
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(200):
                run()
            torch.cuda.synchronize()
            times[f"{name} {fmt}"] = round((time.perf_counter() - start) / 200 * 1e6, 1)
    return times


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sweep", nargs="*")
    parser.add_argument("--warm", type=int, nargs=2)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    with bs.use("cuda"):
        if arguments.warm:
            sweep(arguments.sweep or [], tuple(arguments.warm))
            return
        if arguments.sweep is not None:
            command = [
                sys.executable,
                "-m",
                "benchmarks.gpu_primitives",
                "--sweep",
                *arguments.sweep,
            ]
            count = len(SETTINGS)
            warm = [
                subprocess.Popen([*command, "--warm", str(i), str(count)]) for i in range(count)
            ]
            for each in warm:
                each.wait()
            for name, ratios in sweep(arguments.sweep, None).items():
                best = max(ratios, key=ratios.__getitem__)
                print(
                    f"{name:50} {ratios[best]:.3f} {best:8}",
                    *(f"{k}={v:.2f}" for k, v in ratios.items()),
                )
            return
        copied = copy_speed()
        print(f"copy {copied / 1e9 * 1e3 / 1e3:.2f} TB/s")
        figures: dict[str, object] = {"copy_bytes_per_ms": copied}
        for name, run, size in cases([torch.float32, torch.bfloat16]):
            ratio = size / milliseconds(run) / copied
            figures[name] = round(ratio, 3)
            print(f"{name:50} {ratio:.3f}", flush=True)
        figures["microseconds a call"] = overhead()
        print(figures["microseconds a call"])
    if arguments.write:
        record("gpu_primitives_h200", figures)


if __name__ == "__main__":
    main()
