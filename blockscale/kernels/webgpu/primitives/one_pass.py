# SPDX-License-Identifier: BSD-3-Clause
"""Scales chosen, and codes or values written, in one pass over memory: where a block fits a
workgroup, and blocks follow one another."""

from dataclasses import dataclass, replace
from math import lcm, prod
from typing import NamedTuple

import torch

from blockscale.kernels.numbers import lowered
from blockscale.kernels.webgpu.gpu.device import gpu
from blockscale.kernels.webgpu.gpu.launch import launch
from blockscale.kernels.webgpu.gpu.memory import Memory, allocate
from blockscale.kernels.webgpu.gpu.shader import Kernel
from blockscale.kernels.webgpu.primitives.choices import (
    Constants,
    Numbers,
    coding,
    numbers,
    shader,
)
from blockscale.kernels.webgpu.primitives.choose import (
    Writing,
    choose_outer,
    scale_writing,
    stored_bits,
)
from blockscale.kernels.webgpu.primitives.encode import chunk_of, written_bits
from blockscale.kernels.webgpu.primitives.find import GROUP, of_means, statistic, team_of
from blockscale.kernels.webgpu.primitives.form import Form, whole
from blockscale.kernels.webgpu.primitives.geometry import Geometry, geometry
from blockscale.kernels.webgpu.primitives.packing import pack_items
from blockscale.kernels.webgpu.primitives.parts import Parts, new_parts, outer_of_blocks
from blockscale.kernels.webgpu.primitives.pieces import STEP, largest, pieces
from blockscale.kernels.webgpu.spec import Coding

Shape = tuple[int, ...]
_HELD = 8  # fours of numbers that an invocation keeps in registers
_MOST = 64  # that it reads at all
_FOURS = 4  # of numbers that an invocation reads, where it takes several
_ALONE = 128  # elements of a block that one invocation takes where a CPU computes


@dataclass(frozen=True)
class OnePass(Kernel, part="kernels/one_pass"):
    """Scales and what they make of numbers.

    finding: "extremes" or "means" of magnitudes; keeping: numbers are "held", or "reread"
    scales:  "kept", by `writing`, or "dropped"
    """

    coding: Coding
    numbers: Numbers
    statistic: str
    team: str
    finding: str
    keeping: str
    scales: str
    result: str
    drawn: str
    given_outer: str = "none"
    writing: Writing | None = None


class Plan(NamedTuple):
    """How a tensor is taken in one pass.

    at: its blocks; bits: of what is written, an element
    chunk: elements that an invocation takes after one another
    team: invocations of a block; quads: fours of numbers of each
    step: elements of which pieces are multiples
    """

    at: Geometry
    bits: int
    chunk: int
    team: int
    quads: int
    step: int


def plan(f: Form, dtype: torch.dtype, shape: Shape, bits: int, keeps: bool) -> Plan | None:
    """How, or None where one pass is not enough.

    bits: of what is written, an element
    keeps: scales are written, too
    """
    at = geometry(tuple(shape), f.format.block)
    chunk = chunk_of(bits, dtype)
    if at.shape or not at.shares(chunk):
        return None
    if gpu().software and at.block <= _ALONE and at.block % chunk == 0:
        chunk = at.block  # what waits for others costs most there
    chunks = -(-at.block // chunk)
    team = team_of(-(-chunks // chunks_of_one(f, chunk)))
    quads = -(-chunks // team) * chunk // 4
    small = min(stored_bits(f)) if keeps else 32
    if quads > _MOST or GROUP // team * small % 32 or f.format.unchosen is not None:
        return None  # words of scales would belong to two workgroups
    widest, step = max(8 * dtype.itemsize, bits), STEP
    if at.count > largest(widest):
        step = lcm(at.block, STEP)
        if at.blocks == 1 or largest(widest, step) == 0:
            return None  # pieces would be parts of blocks
    return Plan(at, bits, chunk, team, quads, step)


def chunks_of_one(f: Form, chunk: int) -> int:
    """How many chunks of elements an invocation takes at least, where a block has as many.

    More of them keep more of memory under way, and more registers busy. Measured on an H200, as
    shares of a copy, with one and with `_FOURS` of numbers (docs/webgpu.md): fake_quantize of
    `bfp8` .58 and .84, of `int4` .55 and .83, of `mxfp8` .56 and .46; quantize of `bfp8` .43 and
    .64, of `mxint8` .46 and .50, of `mxfp8` .43 and .35.
    """
    minifloat = lowered(f.format).element.family == "minifloat"
    return 1 if gpu().software or minifloat else max(1, 4 * _FOURS // chunk)


def codes(
    f: Form, x: Memory, dtype: torch.dtype, shape: Shape, seed: Memory | None
) -> tuple[Memory, Parts] | None:
    """Packed codes and their scales; None where one pass is not enough."""
    bits = written_bits(f, shape)
    planned = plan(f, dtype, shape, bits, True)
    if planned is None:
        return None
    out = allocate(-(-prod(shape) * bits // 8))
    parts = new_parts(f, shape)
    if f.inner is not None:
        parts = parts._replace(outer=choose_outer(f, x, dtype, shape))
    _run(f, planned, x, dtype, shape, parts, seed, "codes", out)
    if bits != f.bits:
        out = pack_items(f, out, prod(shape), shape[-1] if shape else 1, bits)
    return out, parts


def values(
    f: Form, x: Memory, dtype: torch.dtype, shape: Shape, seed: Memory | None
) -> Memory | None:
    """Values after a round trip; None where one pass is not enough."""
    bits = 8 * dtype.itemsize
    planned = plan(f, dtype, shape, bits, False)
    if planned is None:
        return None
    out = allocate(prod(shape) * dtype.itemsize)
    outer = None if f.inner is None else choose_outer(f, x, dtype, shape)
    _run(f, planned, x, dtype, shape, Parts(out, outer), seed, "values", out)
    return out


def _run(
    f: Form, planned: Plan, x: Memory, dtype: torch.dtype, shape: Shape, parts: Parts,
    seed: Memory | None, what: str, out: Memory,
) -> None:  # fmt: skip
    """what: "codes", with scales written to `parts`, or "values", where only its outer is read"""
    at, bits, own = planned.at, planned.bits, 8 * dtype.itemsize
    kernel, constants = _kernel(f, planned, dtype, what, seed)
    buffers = {} if seed is None else {"seed": seed}
    if what == "codes":
        writing, more, written = scale_writing(f, parts)
        kernel = replace(kernel, writing=writing)
        constants, buffers = constants | more, buffers | written
    if parts.outer is not None:
        how, buffers["outers"] = outer_of_blocks(f, parts.outer, shape)
        kernel = replace(kernel, given_outer=how)
    made = shader(f, kernel, constants)
    for piece in pieces(at.count, max(own, bits), planned.step):
        blocks = -(-piece.count // at.block)
        sizes = at.named | piece.named | {"blocks": blocks}
        if what == "codes":
            sizes["words"] = -(-piece.count * bits // 32)
        beside = {name: whole(memory) for name, memory in buffers.items()}
        windows = {"x": piece.window(x, own), what: piece.window(out, bits)}
        launch(made, beside | windows, sizes, -(-blocks // (GROUP // planned.team)))


def _kernel(
    f: Form, planned: Plan, dtype: torch.dtype, what: str, seed: Memory | None
) -> tuple[OnePass, Constants]:
    mean = of_means(f)
    kernel = OnePass(
        coding(f),
        numbers(dtype),
        statistic=statistic(f),
        team=team_part(planned.team),
        finding="means" if mean else "extremes",
        keeping="held" if planned.quads <= _HELD else "reread",
        scales="kept" if what == "codes" else "dropped",
        result=what,
        drawn="undrawn" if seed is None else "drawn",
    )
    constants: Constants = {
        "CHUNK": planned.chunk,
        "QUADS": planned.quads,
        "TEAM": planned.team,
        "TEAMS": GROUP // planned.team,
        "POISONS": lowered(f.format).poisons,
    }
    if what == "codes":
        constants["OUT_BITS"] = planned.bits
    if mean:
        constants["ABOVE"] = lowered(f.format).statistic == "mean_above"
    return kernel, constants


def team_part(team: int) -> str:
    """How a team of so many merges what its members found."""
    if team == 1:
        return "alone"
    device = gpu()
    info = device.device.adapter.info
    least = int(info.get("subgroup_min_size") or info.get("stackgroup_min_size") or 4)
    return "subgroup" if "subgroup" in device.features and team <= least else "workgroup"
