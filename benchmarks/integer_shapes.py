# SPDX-License-Identifier: BSD-3-Clause
"""Integer graphs at the sizes of today's models beside float scales and torch: processor time of
one run, one thread, taking turns.

    python -m benchmarks.integer_shapes [--rounds 15] [--only PART] [--save NAME]

The shapes of issue 31 (layers of 1024 to 4096 inputs, an MLP, a SwiGLU, a convolution of 4608
terms, a transformer's block, a small CNN), and linear layers under inputs of 16 bits: torch fp32,
int8 with float scales lowered to "cpu", and integers alone. Once for each instruction set (--isa;
each has a process of its own, with glibc's thresholds raised as in `blockscale bench`). Writes
benchmarks/results/NAME.json (integer_shapes) with hardware, versions and commit.
"""

import argparse
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

import blockscale as bs
from benchmarks.integers import FLOAT, fused, times
from benchmarks.record import record
from blockscale.bench.machine import start_again
from blockscale.kernels.cpu import _native

WIDE = "int16:tensor:pow2/ceil"
ISAS = ("amx", "avx512vnni")


def layers(*sizes: int) -> nn.Module:
    """Linear layers with ReLUs between them."""
    each: list[nn.Module] = []
    for k, n in pairwise(sizes):
        each += [nn.Linear(k, n), nn.ReLU()]
    return nn.Sequential(*each[:-1])


class SwiGLU(nn.Module):
    """As Llama's: weights N(0, 0.02)."""

    def __init__(self, width: int, inner: int):
        super().__init__()
        self.gate, self.up = nn.Linear(width, inner, False), nn.Linear(width, inner, False)
        self.down = nn.Linear(inner, width, False)
        for each in self.parameters():
            nn.init.normal_(each, 0, 0.02)

    def forward(self, x: Tensor) -> Tensor:
        """x [rows, width] -> [rows, width]."""
        y: Tensor = self.down(nn.functional.silu(self.gate(x)) * self.up(x))
        return y


class Block(nn.Module):
    """A transformer's block of 4 heads."""

    def __init__(self, width: int):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """x [batch, tokens, width] -> the same shape."""
        parts = self.qkv(x).chunk(3, -1)
        q, k, v = (each.unflatten(-1, (4, -1)).transpose(1, 2) for each in parts)
        y = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = self.first(x + self.out(y))
        z: Tensor = self.second(x + self.down(nn.functional.gelu(self.up(x))))
        return z


def shapes() -> dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]]:
    """{name: (model, shape of x, format of inputs or "" for that of `integer_recipe`)}."""
    made: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {}
    for k in (1024, 2048, 4096):
        for rows in (32, 1):
            made[f"{k}-1024-64, {rows} rows"] = partial(layers, k, 1024, 64), (rows, k), ""
    for rows in (64, 16, 1):
        made[f"MLP 512-2048-2048-512, {rows} rows"] = (
            lambda: layers(512, 2048, 2048, 512), (rows, 512), "",
        )  # fmt: skip
    for rows in (16, 1):
        made[f"SwiGLU 2048-4096-2048, {rows} rows"] = lambda: SwiGLU(2048, 4096), (rows, 2048), ""
    made["convolution 512-64, 3x3 at 14x14"] = (
        lambda: nn.Conv2d(512, 64, 3, padding=1), (1, 512, 14, 14), "",
    )  # fmt: skip
    made["transformer block 256, 4x64"] = lambda: Block(256), (4, 64, 256), ""
    made["CNN 16-64-128, 8 of 16x16"] = (
        lambda: nn.Sequential(
            nn.Conv2d(16, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 128, 3, padding=1)
        ),
        (8, 16, 16, 16), "",
    )  # fmt: skip
    made["16 bits: 1024-1024-64, 32 rows"] = lambda: layers(1024, 1024, 64), (32, 1024), WIDE
    made["16 bits: 4096-1024-64, 32 rows"] = lambda: layers(4096, 1024, 64), (32, 4096), WIDE
    return made


def graphs(
    build: Callable[[], nn.Module], shape: tuple[int, ...], wide: str
) -> tuple[dict[str, Callable[[], Any]], int]:
    """What takes turns, and the largest proven bound of a sum."""
    torch.manual_seed(0)
    model, x = build().eval(), torch.randn(shape)
    program = torch.export.export(model, (x,))
    scaled = bs.graph.lower(fused(program, bs.Recipe("int8_channel", FLOAT), (x,)), "cpu")
    named: dict[str, Any] = {"input": wide} if wide else {}
    integer = bs.graph.lower(
        fused(program, bs.graph.integer_recipe(program, **named), (x,)), "integer"
    )
    audit = bs.graph.audit_integer(integer)
    assert audit.integer
    ready: dict[str, Callable[..., Any]] = {
        "fp32": model,
        "float scales": scaled,
        "integers": integer,
    }
    calls = {name: partial(each, x) for name, each in ready.items()}
    return dict(calls), max(each.largest for each in audit.sums)


def measured(rounds: int, only: str) -> dict[str, Any]:
    """Times in milliseconds and ratios of all shapes by the instruction set in use."""
    figures: dict[str, Any] = {}
    for name, (build, shape, wide) in shapes().items():
        if only not in name:
            continue
        calls, largest = graphs(build, shape, wide)
        found = times(calls, rounds)
        whole = found["integers"]
        ratios = {each: whole / found[each] for each in ("fp32", "float scales")}
        figures[name] = {"largest": largest, "ms": found, "integers /": ratios}
        told = ", ".join(f"{each} {ms:.3f}" for each, ms in found.items())
        over = ", ".join(f"/ {each} {ratio:.2f}" for each, ratio in ratios.items())
        print(f"{_native.isa()}: {name} (to {largest:.2g}): {told}; {over}", file=sys.stderr)
    return figures


def main() -> None:
    """Measure, print, record."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--rounds", type=int, default=15)
    given.add_argument("--only", default="", help="shapes with this in their names")
    given.add_argument("--isa", action="append", help=f"by default {' and '.join(ISAS)}")
    given.add_argument("--save", default="integer_shapes", help="'' for no file")
    given.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = given.parse_args()
    start_again()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", UserWarning)
    if options.one:
        print(json.dumps(measured(options.rounds, options.only)))
        return
    figures = {}
    for isa in options.isa or ISAS:
        more = ["--one", "--rounds", str(options.rounds), "--only", options.only]
        command = [sys.executable, "-m", "benchmarks.integer_shapes", *more]
        environment = {**os.environ, "BLOCKSCALE_CPU_ISA": isa}
        run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
        figures[isa] = json.loads(run.stdout)
    if options.save:
        print(record(options.save, figures))


if __name__ == "__main__":
    main()
