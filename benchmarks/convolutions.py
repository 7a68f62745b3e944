# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions on the CPU, in times of torch's float32 layer, and how each of them runs.

    BLOCKSCALE_CPU_ISA=avx512vnni python -m benchmarks.convolutions [--seconds 1] [--save NAME]

One image, one thread, float32 in and out, channels first. A layer and its float32 one take turns
within one process; figures are the least processor time of a call, which other work on the
machine distorts little. It starts itself again with glibc's thresholds raised, as `blockscale
bench` does: page faults of fresh results would hide all else. Written to
benchmarks/results/NAME.json (convolutions) with hardware, versions and commit.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

import blockscale as bs
from benchmarks.record import record
from blockscale.bench.machine import start_again
from blockscale.kernels.cpu import _native
from blockscale.kernels.cpu.conv_way import way

# (channels, outputs, kernel, stride, padding, groups, size of a side): layers of ResNet-50,
# MobileNet-V2, EfficientNet-B0, ResNeXt-50
SHAPES: dict[str, tuple[int, ...]] = {
    "stem 7x7 of ResNet": (3, 64, 7, 2, 3, 1, 224),
    "stem 3x3 of MobileNet": (3, 32, 3, 2, 1, 1, 224),
    "1x1 256 to 64": (256, 64, 1, 1, 0, 1, 56),
    "1x1 64 to 256": (64, 256, 1, 1, 0, 1, 56),
    "1x1 16 to 96": (16, 96, 1, 1, 0, 1, 112),
    "1x1 512 to 1024": (512, 1024, 1, 1, 0, 1, 14),
    "depthwise 3x3 of 144": (144, 144, 3, 1, 1, 144, 56),
    "depthwise 5x5 of 240": (240, 240, 5, 2, 2, 240, 28),
    "depthwise 3x3 of 512": (512, 512, 3, 1, 1, 512, 14),
    "32 groups, 3x3 of 128": (128, 128, 3, 1, 1, 32, 28),
    "3x3 64": (64, 64, 3, 1, 1, 1, 56),
    "3x3 256": (256, 256, 3, 1, 1, 1, 14),
    "3x3 16": (16, 16, 3, 1, 1, 1, 32),
}
INPUTS = {"dynamic": "int8", "static": "int8", "token": "int8_token", "weights alone": None}

Call = Callable[[], object]


def least(calls: dict[str, Call], seconds: float) -> dict[str, float]:
    """Milliseconds of each call, which take turns until the time is up."""
    best = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()
    end, turns = time.process_time() + seconds, 0
    while turns < 5 or time.process_time() < end:
        for name, call in calls.items():
            start = time.process_time()
            call()
            best[name] = min(best[name], 1e3 * (time.process_time() - start))
        turns += 1
    return best


def quantized(layer: nn.Conv2d, how: str) -> nn.Module:
    """The layer with int8 weights, and inputs as INPUTS says; a static scale is given."""
    model: Any = nn.Sequential(nn.Conv2d(*_arguments(layer)))
    bs.quantize_(model, bs.Recipe("int8_channel", INPUTS[how]))
    if how == "static":
        model[0].input.set_scale(torch.full((1,), 0.03))
    made: nn.Module = model[0]
    return made


def _arguments(layer: nn.Conv2d) -> tuple[Any, ...]:
    return (
        *(layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride),
        *(layer.padding, layer.dilation, layer.groups),
    )


def measured(shape: tuple[int, ...], seconds: float) -> dict[str, Any]:
    """{input: its time in torch's}, torch's milliseconds, and how each runs."""
    channels, outputs, kernel, stride, padding, groups, side = shape
    layer = nn.Conv2d(channels, outputs, kernel, stride, padding, groups=groups)
    x = torch.randn(1, channels, side, side)
    calls: dict[str, Call] = {"torch fp32": partial(layer, x)}
    calls |= {how: partial(quantized(layer, how), x) for how in INPUTS}
    best = least(calls, seconds)
    unit = best["torch fp32"]
    formats = {how: bs.parse(fmt).spelling if fmt else "" for how, fmt in INPUTS.items()}
    isa, weight = _native.isa(), bs.parse("int8_channel").spelling
    return {
        "torch fp32 ms": round(unit, 4),
        "ratios": {how: round(best[how] / unit, 3) for how in INPUTS},
        "ways": {
            how: way(layer.weight.shape, groups, fmt, weight, isa, channels_last=False).value
            for how, fmt in formats.items()
        },
    }


def main() -> None:
    """Measure, print, record."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--seconds", type=float, default=1.0)
    given.add_argument("--only", default="", help="shapes with this in their names")
    given.add_argument("--save", default="convolutions", help="'' for no file")
    options = given.parse_args()
    start_again()
    torch.set_num_threads(1)
    figures: dict[str, Any] = {"instructions": _native.isa()}
    with torch.no_grad():
        for name, shape in SHAPES.items():
            if options.only not in name:
                continue
            figures[name] = found = measured(shape, options.seconds)
            ratios = "  ".join(f"{how} {ratio:.2f}" for how, ratio in found["ratios"].items())
            print(f"{name:24} {found['torch fp32 ms']:8.3f} ms  {ratios}", flush=True)
    if options.save:
        print(record(options.save, figures))


if __name__ == "__main__":
    main()
