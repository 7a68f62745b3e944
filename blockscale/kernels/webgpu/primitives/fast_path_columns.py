# SPDX-License-Identifier: BSD-3-Clause
"""Blocks along the columns of a matrix: scales, codes and values in one pass, as
primitives/fast_path.py does for blocks whose numbers are neighbours."""

from dataclasses import dataclass
from math import lcm, prod
from typing import NamedTuple

import torch

from blockscale.kernels.numbers import lowered
from blockscale.kernels.webgpu.gpu.device import gpu
from blockscale.kernels.webgpu.gpu.launch import launch
from blockscale.kernels.webgpu.gpu.memory import Memory, allocate
from blockscale.kernels.webgpu.gpu.shader import Kernel
from blockscale.kernels.webgpu.primitives import fast_path_plan, fast_path_sums
from blockscale.kernels.webgpu.primitives.choices import (
    Constants,
    Numbers,
    coding,
    numbers,
    shader,
)
from blockscale.kernels.webgpu.primitives.choose import Writing, scale_writing
from blockscale.kernels.webgpu.primitives.fast_path_plan import FastParts
from blockscale.kernels.webgpu.primitives.fast_path_tables import cells
from blockscale.kernels.webgpu.primitives.find import GROUP, statistic
from blockscale.kernels.webgpu.primitives.form import Form, whole
from blockscale.kernels.webgpu.primitives.geometry import Geometry, geometry
from blockscale.kernels.webgpu.primitives.parts import Parts, new_parts
from blockscale.kernels.webgpu.primitives.pieces import STEP, largest, pieces
from blockscale.kernels.webgpu.spec import Coding

Shape = tuple[int, ...]
_TABLES = 1024  # bytes of a workgroup's memory that codebooks may take
_ROWS, _MOST = 8, 16  # that an invocation takes at least, if there are so many, and at most


@dataclass(frozen=True)
class FastColumns(Kernel, part="kernels/fast_path_columns"):
    """Scales of columns and what they make of numbers; roles as those of FastPath."""

    coding: Coding
    numbers: Numbers
    parts: FastParts
    statistic: str
    find: str
    team: str
    narrow: str
    result: str
    given_outer: str = "none"
    writing: Writing | None = None


class Plan(NamedTuple):
    """at: blocks; units: of 16 bytes of a row of the matrix; parts: neighbours that share a column;
    rows: that each takes; step: elements of which pieces are multiples"""

    at: Geometry
    units: int
    parts: int
    rows: int
    step: int


def plan(f: Form, dtype: torch.dtype, shape: Shape, what: str) -> Plan | None:
    """How "codes" or "values" are made, or None where another way has to be taken."""
    at, bits = geometry(tuple(shape), f.format.block), 8 * dtype.itemsize
    if len(at.shape) != 2 or at.sizes[1] != 1 or at.shape[0] % at.sizes[0]:
        return None
    if not fast_path_plan.trusted(dtype) or fast_path_sums.refusal() is not None:
        return None
    own = fast_path_plan.parts(f.format)
    if own is None or own.fast_choose not in ("any", "float") or f.asym:
        return None
    if own.scaled == "shift_drawn":
        return None
    units, left = divmod(at.shape[1] * bits, 128)
    block, unit_bits = at.sizes[0], 128 // bits * f.bits
    parts = 1 << max((block // _ROWS).bit_length() - 1, 0)
    parts = min(parts, fast_path_plan.reach() // 2)
    rows, step = block // parts, lcm(block * at.shape[1], STEP)
    if left or block % parts or rows > _MOST or largest(bits, step) == 0:
        return None
    columns = GROUP // parts * 128 // bits  # of which a workgroup's memory holds four words each
    if 16 * columns > gpu().limits["max-compute-workgroup-storage-size"] - _TABLES:
        return None
    if what == "codes" and (unit_bits not in (32, 64) or not f.streams(shape[-1])):
        return None
    return Plan(at, units, parts, rows, step)


def values(f: Form, x: Memory, dtype: torch.dtype, shape: Shape) -> Memory | None:
    """Values after a round trip; None where another way has to be taken."""
    planned = plan(f, dtype, shape, "values")
    if planned is None:
        return None
    out = allocate(prod(shape) * dtype.itemsize)
    _run(f, x, dtype, planned, "values", None, out)
    return out


def codes(f: Form, x: Memory, dtype: torch.dtype, shape: Shape) -> tuple[Memory, Parts] | None:
    """Packed codes and their scales; None where another way has to be taken."""
    planned = plan(f, dtype, shape, "codes")
    if planned is None:
        return None
    out, made = allocate(prod(shape) * f.bits // 8), new_parts(f, shape)
    _run(f, x, dtype, planned, "codes", made, out)
    return out, made


def _run(
    f: Form, x: Memory, dtype: torch.dtype, planned: Plan, what: str, made: Parts | None,
    out: Memory,
) -> None:  # fmt: skip
    """made: where scales are written; None drops them"""
    at, own, reach = planned.at, 8 * dtype.itemsize, fast_path_plan.reach()
    known = fast_path_plan.parts(f.format)
    assert known is not None
    constants: Constants = {
        "GROUP": GROUP, "REACH": reach, "TEAM": 1, "COLUMNS": reach // planned.parts,
        "ROWS": planned.rows, "POISONS": lowered(f.format).poisons,
    }  # fmt: skip
    if known.family == "codebook":
        constants |= cells(lowered(f.format).element) or {}
    beside: dict[str, Memory] = {}
    writing = None
    if made is not None:
        writing, more, beside = scale_writing(f, made)
        constants |= more
    kernel = FastColumns(
        coding(f), numbers(dtype), known, statistic=statistic(f), find=statistic(f),
        team="subgroup", narrow=fast_path_plan.narrowing(f, dtype), result=what, writing=writing,
    )  # fmt: skip
    assembled, bits = shader(f, kernel, constants), f.bits if made else own
    for piece in pieces(at.count, own, planned.step):
        down = piece.count // (at.sizes[0] * at.shape[1])
        teams = down * -(-planned.units // (reach // planned.parts))
        windows = {"x": piece.window(x, own), what: piece.window(out, bits)}
        buffers = {name: whole(memory) for name, memory in beside.items()} | windows
        sizes = {"first": piece.first, "units": planned.units, "down": down}
        launch(assembled, buffers, sizes, -(-teams // (GROUP // reach)))
