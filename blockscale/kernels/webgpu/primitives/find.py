# SPDX-License-Identifier: BSD-3-Clause
"""What the scales of blocks are chosen from: extremes and sums, merged from slices of blocks."""

from dataclasses import dataclass

import torch

from blockscale.kernels.numbers import lowered
from blockscale.kernels.webgpu.gpu.launch import launch
from blockscale.kernels.webgpu.gpu.memory import Memory, zeros
from blockscale.kernels.webgpu.gpu.shader import Kernel
from blockscale.kernels.webgpu.primitives.choices import Constants, Numbers, coding, shader
from blockscale.kernels.webgpu.primitives.form import Form
from blockscale.kernels.webgpu.primitives.geometry import Geometry
from blockscale.kernels.webgpu.primitives.source import Source, read, seen, sizes
from blockscale.kernels.webgpu.spec import Coding

GROUP = 256  # invocations of a workgroup
_LANES = 1 << 18  # invocations that keep a large GPU busy
_LEAST = 8  # units that an invocation takes, if there are so many


@dataclass(frozen=True)
class Extremes(Kernel, part="kernels/extremes"):
    """Extremes of blocks. reading: "quads" or "ones" of numbers; team: how they are merged"""

    coding: Coding
    numbers: Numbers
    statistic: str
    reading: str
    blocks: str
    team: str


@dataclass(frozen=True)
class Sums(Extremes, part="kernels/sums"):
    """Sums of magnitudes. least: of which, statistics/{least}"""

    least: str


def statistic(f: Form) -> str:
    """The part statistics/{statistic} of a format."""
    numbers = lowered(f.format)
    if numbers.statistic == "range":
        return "bare" if numbers.offset else "both"
    return "high" if numbers.statistic == "high" else "magnitude"


def of_means(f: Form) -> bool:
    """Whether scales are chosen from means of magnitudes."""
    return lowered(f.format).statistic in ("mean", "mean_above")


def find(f: Form, x: Source, dtype: torch.dtype, at: Geometry) -> dict[str, Memory]:
    """What statistics/block_stats/extremes or …/means reads, by the names that it binds."""
    keys = 2 if statistic(f) in ("both", "bare") else 1
    work = zeros(4 * keys * at.blocks)
    _merge(f, x, dtype, at, None, {"work": work})
    if not of_means(f):
        return {"work": work}
    sums = zeros(12 * at.blocks)
    _merge(f, x, dtype, at, "least_any", {"totals": sums, "largest": work})
    if lowered(f.format).statistic == "mean_above":
        first, sums = sums, zeros(12 * at.blocks)
        buffers = {"totals": sums, "largest": work, "first": first}
        _merge(f, x, dtype, at, "least_above", buffers)
    return {"work": work, "totals": sums}


def _merge(
    f: Form, x: Source, dtype: torch.dtype, at: Geometry, least: str | None,
    buffers: dict[str, Memory],
) -> None:  # fmt: skip
    """least: which magnitudes are added; None: extremes are found"""
    quads = not at.shape and (at.blocks == 1 or at.block % 4 == 0)
    unit = 4 if quads else 1
    units = -(-at.block // unit)
    team = team_of(-(-at.inner // unit))
    each = max(_LEAST, -(-units * at.blocks // _LANES))
    part = min(team * each, units)
    slices = -(-units // part)
    kernel: Kernel = Extremes(
        coding(f),
        read(x, dtype),
        statistic=statistic(f),
        reading="quads" if quads else "ones",
        blocks=at.kind,
        team="alone" if team == 1 else "workgroup",
    )
    if least is not None:
        kernel = Sums(**vars(kernel), least=least)
    constants: Constants = {"TEAM": team, "POISONS": lowered(f.format).poisons}
    made = shader(f, kernel, constants)
    named = {"count": at.count, "blocks": at.blocks, "slices": slices, "slice": part}
    for piece, window in seen(x, at.count, 8 * dtype.itemsize):
        launch(
            made,
            {**buffers, "x": window},
            at.named | named | sizes(x) | piece.named,
            -(-at.blocks * slices * team // GROUP),
        )


def team_of(units: int) -> int:
    """How many invocations share so many neighbouring units: a power of two."""
    return min(1 << (units - 1).bit_length(), GROUP)
