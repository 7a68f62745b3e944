# SPDX-License-Identifier: BSD-3-Clause
"""The scale of each block of a tensor, by a pass of its own over the numbers."""

from dataclasses import dataclass
from math import prod

import torch

from blockscale.kernels.numbers import lowered
from blockscale.kernels.webgpu.gpu.launch import launch
from blockscale.kernels.webgpu.gpu.memory import Memory, allocate, zeros
from blockscale.kernels.webgpu.gpu.shader import Roles, ShaderKernel
from blockscale.kernels.webgpu.primitives.form import (
    DTYPES,
    Constants,
    Form,
    Geometry,
    NumberRoles,
    Parts,
    Source,
    coding,
    geometry,
    new_parts,
    outer_of_blocks,
    read,
    shader,
    sizes,
    whole,
    windows,
)
from blockscale.kernels.webgpu.spec import Coding

Shape = tuple[int, ...]
GROUP = 256  # invocations of a workgroup
_LANES = 1 << 18  # invocations that keep a large GPU busy
_LEAST = 8  # units that an invocation takes, if there are so many


@dataclass(frozen=True)
class Writing(Roles):
    """How what is chosen for blocks is written: stored_params/store/…"""

    store_zeros: str
    store_offsets: str
    stored_scale: str
    stored_zero: str
    stored_offset: str


@dataclass(frozen=True)
class Finish(ShaderKernel, part="kernels/choose/finish"):
    """The scale of each block, of what was found in it."""

    coding: Coding
    statistic: str
    block_stats: str
    given_outer: str
    writing: Writing


@dataclass(frozen=True)
class Numerators(ShaderKernel, part="kernels/choose/numerators"):
    """The largest numerators of the blocks that share an outer scale."""

    coding: Coding
    statistic: str
    block_stats: str
    blocks: str


@dataclass(frozen=True)
class Outer(ShaderKernel, part="kernels/choose/outer"):
    """Outer scales, of those."""

    coding: Coding
    stored_outer: str


def choose(f: Form, x: Source, dtype: torch.dtype, shape: Shape) -> Parts:
    """The scale of numbers [*shape], of which there are some, and what goes with it."""
    if f.format.unchosen is not None:
        raise ValueError(
            f"{f.format}: {f.format.unchosen}: pass the scale that a file or another library has"
        )
    at = geometry(tuple(shape), f.format.block)
    result = find(f, x, dtype, at)
    parts, given_outer = new_parts(f, shape), "none"
    buffers = dict(result)
    if f.inner is not None:
        parts = parts._replace(outer=_outer(f, result, shape))
        assert parts.outer is not None
        given_outer, buffers["outers"] = outer_of_blocks(f, parts.outer, shape)
    _finish(f, buffers, given_outer, parts, at.blocks)
    return parts


def choose_outer(f: Form, x: Memory, dtype: torch.dtype, shape: Shape) -> Memory:
    """The outer scales alone of a format that has two levels."""
    return _outer(f, find(f, x, dtype, geometry(tuple(shape), f.format.block)), shape)


def _block_stats(f: Form) -> str:
    """How what was found in blocks is read: statistics/block_stats/…"""
    return "means" if of_means(f) else "extremes"


def _finish(
    f: Form, buffers: dict[str, Memory], given_outer: str, parts: Parts, blocks: int
) -> None:
    """Write the scales of blocks."""
    writing, constants, outputs = scale_writing(f, parts)
    together = 32 // min(stored_bits(f))
    constants["TOGETHER"] = together
    launch(
        shader(
            f, Finish(coding(f), statistic(f), _block_stats(f), given_outer, writing), constants
        ),
        {name: whole(memory) for name, memory in (buffers | outputs).items()},
        {"blocks": blocks},
        -(-blocks // (GROUP * together)),
    )


def scale_writing(f: Form, parts: Parts) -> tuple[Writing, Constants, dict[str, Memory]]:
    """How kernels write what they choose for blocks, and the memory that they write to."""
    scale, zero, offset = stored_bits(f)
    constants: Constants = {
        "SCALE_BITS": scale,
        "ZERO_BITS": zero,
        "OFFSET_BITS": offset,
        "POISONS": lowered(f.format).poisons,
    }
    writing = Writing(
        store_zeros="none" if parts.zero is None else "words",
        store_offsets="none" if parts.offset is None else "words",
        stored_scale=stored(f.scale_dtype),
        stored_zero=stored(f.zero_dtype),
        stored_offset=stored(f.offset_dtype),
    )
    outputs = {"scales": parts.scale, "zeros": parts.zero, "offsets": parts.offset}
    return writing, constants, {name: part for name, part in outputs.items() if part is not None}


def stored_bits(f: Form) -> tuple[int, int, int]:
    """Of a scale, a zero point and an offset; 32 for what a format has not."""
    offset = 32 if f.offset_dtype is None else 8 * f.offset_dtype.itemsize
    return 8 * f.scale_dtype.itemsize, 8 * f.zero_dtype.itemsize, offset


def stored(dtype: torch.dtype | None) -> str:
    """How what is chosen as float32, or as a byte, is stored."""
    return DTYPES[dtype] if dtype in (torch.float16, torch.bfloat16) else "plain"


def _outer(f: Form, memories: dict[str, Memory], shape: Shape) -> Memory:
    """The outer scales, chosen from the largest numerators of the blocks that share them."""
    assert f.inner is not None and f.outer_shape is not None
    scales = f.scale_shape(shape)
    at = geometry(scales, f.inner.block)
    count = prod(f.outer_shape(scales))
    largest = zeros(4 * count)
    constants: Constants = {"ONE_OUTER": count == 1, "POISONS": lowered(f.format).poisons}
    launch(
        shader(f, Numerators(coding(f), statistic(f), _block_stats(f), at.kind), constants),
        {name: whole(memory) for name, memory in memories.items()} | {"largest": whole(largest)},
        at.shader_sizes | {"blocks": at.count},
        -(-at.count // (GROUP * 16)),
    )
    return outer_of(f, largest, count)


def outer_of(f: Form, largest: Memory, count: int) -> Memory:
    """`count` outer scales as stored, of the largest numerators that they are chosen from."""
    outers, bits = allocate(f.outer_dtype.itemsize * count), 8 * f.outer_dtype.itemsize
    constants: Constants = {"SCALE_BITS": bits, "POISONS": lowered(f.format).poisons}
    launch(
        shader(f, Outer(coding(f), stored(f.outer_dtype)), constants),
        {"largest": whole(largest), "scales": whole(outers)},
        {"outers": count},
        -(-count * bits // (32 * GROUP)),
    )
    return outers


# What scales are chosen from: extremes and sums, merged from slices of blocks.


@dataclass(frozen=True)
class ExtremesKernel(ShaderKernel, part="kernels/choose/extremes"):
    """Extremes of blocks. reading: "quads" or "ones" of numbers; team: how they are merged"""

    coding: Coding
    numbers: NumberRoles
    statistic: str
    reading: str
    blocks: str
    team: str


@dataclass(frozen=True)
class SumsKernel(ExtremesKernel, part="kernels/choose/sums"):
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
    kernel: ShaderKernel = ExtremesKernel(
        coding(f),
        read(x, dtype),
        statistic=statistic(f),
        reading="quads" if quads else "ones",
        blocks=at.kind,
        team="alone" if team == 1 else "workgroup",
    )
    if least is not None:
        kernel = SumsKernel(**vars(kernel), least=least)
    constants: Constants = {"TEAM": team, "POISONS": lowered(f.format).poisons}
    result = shader(f, kernel, constants)
    counts = {"count": at.count, "blocks": at.blocks, "slices": slices, "slice": part}
    for piece, window in windows(x, at.count, 8 * dtype.itemsize):
        launch(
            result,
            {**buffers, "x": window},
            at.shader_sizes | counts | sizes(x) | piece.shader_sizes,
            -(-at.blocks * slices * team // GROUP),
        )


def team_of(units: int) -> int:
    """How many invocations share so many neighbouring units: a power of two."""
    return min(1 << (units - 1).bit_length(), GROUP)
