# SPDX-License-Identifier: BSD-3-Clause
"""CPU linear layers: inputs with zero points beside those without, and what a call costs.

    PYTHONPATH=. python benchmarks/cpu_linear.py

Layers take turns within one process; times are the least of many turns ("few": medians).
BLOCKSCALE_CPU_ISA chooses an instruction set, OMP_NUM_THREADS the threads.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

import blockscale as bs
from blockscale.kernels.cpu import _native
from blockscale.kernels.cpu.linear import linear as kernel
from blockscale.kernels.cpu.native import linear_weight
from blockscale.layers.kinds import QLinear

INPUTS = {  # symmetric: the asymmetric ones that are compared with it
    "int8:token:fp32": ("uint8:token:fp32:asym", "int8:token:fp32:asym"),
    "int8:tensor:fp32": ("uint8:tensor:fp32:asym", "int8:tensor:fp32:asym"),
}
LAYERS = 64  # of 1 MiB of int8 each: more than L3


def layer(size: int, weight: str, taken: str | None) -> QLinear:
    """A quantized layer [size, size]."""
    model = nn.Sequential(nn.Linear(size, size))
    bs.quantize_(model, bs.Recipe(weight=weight, input=taken))
    return model[0]  # type: ignore[return-value]


def turns(calls: list[Callable[[], object]], count: int) -> list[list[float]]:
    """Microseconds of each call, which take turns."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(count):
        for call, each in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            each.append((time.perf_counter() - start) * 1e6)
    return times


def asymmetric(size: int = 1024) -> None:
    """Times of asymmetric inputs in symmetric ones' of the same turns."""
    for weight in ("int8_channel", "int4:group32:fp32"):
        for plain, others in INPUTS.items():
            layers = [layer(size, weight, each) for each in (plain, *others)]
            for m in (1, 32, 256):
                x = torch.randn(m, size) + 0.3
                best = [min(t) for t in turns([partial(q, x) for q in layers], 15)]
                ratios = "  ".join(
                    f"{o} {b / best[0]:.2f}" for o, b in zip(others, best[1:], strict=True)
                )
                print(f"{weight} x {plain} m={m}: {best[0]:.0f} us; {ratios}")


def few() -> None:
    """One row: what a call of a small layer costs by stage, and cold caches."""
    for weight, taken in (
        ("int8_channel", None),
        ("int8_channel", "int8:token:fp32"),
        ("mxfp4", None),
    ):
        small, x, big_x = layer(32, weight, taken), torch.randn(1, 32), torch.randn(1, 1024)
        operand, by, bias = small.qweight.operand, small.of_input(x), small.added_bias()
        layers = [layer(1024, weight, taken) for _ in range(LAYERS)]
        stages = [
            partial(small, x),
            partial(kernel, x, operand, bias, by),
            partial(linear_weight, operand),
        ]
        module, native, ready = (statistics.median(t) for t in turns(stages, 500))
        cold = statistics.median(t[-1] for t in turns([partial(q, big_x) for q in layers], 5))
        warm = statistics.median(turns([partial(layers[0], big_x)], 200)[0])
        print(
            f"{weight} x {taken} m=1: module {module:.1f}, kernel {native:.1f}, of it the weight's "
            f"check {ready:.1f} us; 1024 x 1024 warm {warm:.0f}, cold {cold:.0f} us"
        )


if __name__ == "__main__":
    print(_native.isa(), torch.get_num_threads(), "threads")
    with torch.no_grad():
        asymmetric()
        few()
