# SPDX-License-Identifier: BSD-3-Clause
"""Local sizes on textures, by the shape of blocks: python -m benchmarks.webgpu_textures [--write]

Quantizing numbers in a 3-D texture with a given scale, under every local size of 64 and of 256
invocations that is a power of two along each axis, beside what the rule of
blockscale/kernels/webgpu/texture_storage.py chooses.
"""

import argparse
from collections.abc import Iterator
from math import prod
from statistics import median
from typing import Any

import torch

from benchmarks.record import record
from benchmarks.webgpu import OnWebGPU, copying
from blockscale.kernels.registry import unavailable
from blockscale.kernels.webgpu.gpu.device import gpu
from blockscale.kernels.webgpu.primitives.form import form, given_parts
from blockscale.kernels.webgpu.texture_storage import (
    Texture,
    Three,
    block_grid,
    empty,
    layout,
    local_size,
    run,
    texture,
)

SHAPE, SMALL = (64, 512, 2048), (8, 128, 512)
BLOCKS = (
    "group4", "group32", "token", "tile16x16", "group32@-2", "group8@0", "block4x4x4",
    "block2x3x5", "tensor",
)  # fmt: skip


def local_sizes() -> Iterator[Three]:
    """Every local size that is tried."""
    powers = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    for x in powers:
        for y in powers:
            for z in powers[:5]:
                if x * y * z in (64, 256):
                    yield x, y, z


def measured(block: str, x: Texture, clock: OnWebGPU, rounds: int) -> dict[str, Any]:
    """Milliseconds by local size, and how far the rule's is from the best."""
    f = form(f"int8:{block}:fp32")
    made = empty(x.shape, 8, x.shape, torch.int8)
    scale = torch.full(f.scale_shape(x.shape), 0.05)
    parts = given_parts(f, x.shape, scale, None, None, None, scale)
    grid = block_grid(x.shape, f.format.block)
    assert grid is not None
    at = layout(x.shape)
    own = local_size(grid.texels, at.texels)
    sizes = sorted({*local_sizes(), own})
    times: dict[Three, list[float]] = {size: [] for size in sizes}
    copies = []
    copy = copying(5 * prod(x.shape))
    for turn in range(rounds + 1):  # the first compiles
        for size in sizes:
            seconds = clock(lambda s=size: run("quantize", f, x, made, parts, None, s), 3)  # type: ignore[misc]
            if turn:
                times[size].append(seconds)
        copies.append(clock(copy, 3))
    found = {size: median(each) for size, each in times.items()}
    best = min(found, key=found.__getitem__)
    told = {_name(size): round(t * 1e3, 3) for size, t in sorted(found.items(), key=lambda p: p[1])}
    return {
        "block_texels": list(grid.texels),
        "rule": _name(own),
        "best": _name(best),
        "rule_of_best": round(found[best] / found[own], 3),
        "of_copy": round(median(copies) / found[own], 3),
        "milliseconds": told,
    }


def _name(size: Three) -> str:
    return "x".join(map(str, size))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="keep the figures")
    arguments = parser.parse_args()
    reason = unavailable("webgpu")
    if reason is not None:
        raise SystemExit(f"no WebGPU here: {reason}")
    shape = SMALL if gpu().software else SHAPE
    clock = OnWebGPU()
    x = texture(torch.randn(shape, generator=torch.Generator().manual_seed(0)))
    figures: dict[str, Any] = {"adapter": gpu().name, "shape": list(shape)}
    print(figures)
    for block in BLOCKS:
        told = measured(block, x, clock, arguments.rounds)
        figures[block] = told
        first = dict(list(told["milliseconds"].items())[:4])
        print(f"{block:12} {told | {'milliseconds': first}}", flush=True)
    if arguments.write:
        print(record(f"webgpu_textures_{'software' if gpu().software else 'gpu'}", figures))


if __name__ == "__main__":
    main()
