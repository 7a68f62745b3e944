# SPDX-License-Identifier: BSD-3-Clause
"""Scales chosen, and codes or values written, in one pass over memory: the kernels of plan.py's
cases."""

from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

import torch

from blockscale.kernels.numbers import lowered
from blockscale.kernels.webgpu.gpu.device import gpu
from blockscale.kernels.webgpu.gpu.launch import launch
from blockscale.kernels.webgpu.gpu.memory import Memory, allocate, zeros
from blockscale.kernels.webgpu.gpu.shader import ShaderKernel
from blockscale.kernels.webgpu.primitives import plan as plans
from blockscale.kernels.webgpu.primitives.choose import (
    GROUP,
    Writing,
    choose_outer,
    of_means,
    outer_of,
    scale_writing,
    statistic,
)
from blockscale.kernels.webgpu.primitives.encode import pack_items
from blockscale.kernels.webgpu.primitives.fast_path import FastParts, cells, narrowing, parts
from blockscale.kernels.webgpu.primitives.form import (
    Constants,
    Form,
    NumberRoles,
    Parts,
    coding,
    new_parts,
    numbers,
    outer_of_blocks,
    pieces,
    shader,
    whole,
)
from blockscale.kernels.webgpu.primitives.plan import (
    ColumnsPlan,
    Lines,
    OnePass,
    Teams,
)
from blockscale.kernels.webgpu.spec import Coding

Shape = tuple[int, ...]
_TURNS = {"mean": 1, "mean_above": 2}  # of sums of magnitudes, that a mean takes
_HELD = 8  # fours of numbers that an invocation of a team keeps in registers


@dataclass(frozen=True)
class FastOuter(ShaderKernel, part="kernels/fast_path/outer"):
    """The largest numerator of all blocks.

    find:  fast_path_choose/find/{find}; team: how neighbours merge what they found
    place: blocks are a "line" of neighbours in memory, or a "tile"
    """

    coding: Coding
    numbers: NumberRoles
    find: str
    team: str
    place: str


@dataclass(frozen=True)
class FastPath(FastOuter, part="kernels/fast_path"):
    """Scales and what they make of numbers, in units of 16 bytes.

    parts:          what the format asks for
    narrow:         how values become numbers of the dtype, fast_path_memory/narrow/{narrow}
    result:         "codes", those of neighbours "codes_together", or "values"
    exact_fallback: what is computed again, exactly: "codes" or "values"
    words:          of codes, that are written at once: "one", "two" or "four"
    writing:        how scales are written, if they are
    """

    parts: FastParts
    statistic: str
    narrow: str
    result: str
    exact_fallback: str
    words: str
    draws: str
    given_outer: str = "none"
    writing: Writing | None = None


@dataclass(frozen=True)
class FastColumns(ShaderKernel, part="kernels/fast_path_columns"):
    """Scales of columns and what they make of numbers; roles as those of FastPath."""

    coding: Coding
    numbers: NumberRoles
    parts: FastParts
    statistic: str
    find: str
    team: str
    narrow: str
    result: str
    given_outer: str = "none"
    writing: Writing | None = None


@dataclass(frozen=True)
class Team(ShaderKernel, part="kernels/one_pass"):
    """Scales and what they make of numbers.

    finding: "extremes" or "means" of magnitudes; keeping: numbers are "held", or "reread"
    scales:  "kept", by `writing`, or "dropped"
    """

    coding: Coding
    numbers: NumberRoles
    statistic: str
    team: str
    finding: str
    keeping: str
    scales: str
    result: str
    draws: str
    given_outer: str = "none"
    writing: Writing | None = None


def codes(
    f: Form, x: Memory, dtype: torch.dtype, shape: Shape, plan: OnePass, seed: Memory | None
) -> tuple[Memory, Parts]:
    """Packed codes and their scales."""
    bits = plan.bits if isinstance(plan, Teams) else f.bits
    out, result = allocate(-(-prod(shape) * bits // 8)), new_parts(f, shape)
    if f.inner is not None:
        result = result._replace(outer=_outer(f, x, dtype, shape, plan))
    _run(_Call(f, x, dtype, shape, "codes", result, seed, out), plan)
    if bits != f.bits:
        out = pack_items(f, out, prod(shape), shape[-1] if shape else 1, bits)
    return out, result


def values(
    f: Form, x: Memory, dtype: torch.dtype, shape: Shape, plan: OnePass, seed: Memory | None
) -> Memory:
    """Values after a round trip."""
    out = allocate(prod(shape) * dtype.itemsize)
    outer = None if f.inner is None else _outer(f, x, dtype, shape, plan)
    _run(_Call(f, x, dtype, shape, "values", Parts(out, outer), seed, out), plan)
    return out


class _Call(NamedTuple):
    """What is made of a tensor.

    what:   "codes", with scales written to `stored`, or "values", where only its outer is read
    stored: scales; out: codes or values
    """

    f: Form
    x: Memory
    dtype: torch.dtype
    shape: Shape
    what: str
    stored: Parts
    seed: Memory | None
    out: Memory

    @property
    def own(self) -> int:
        """Bits of a number."""
        return 8 * self.dtype.itemsize

    @property
    def draws(self) -> str:
        """Whether random numbers are drawn."""
        return "undrawn" if self.seed is None else "drawn"

    def beside(self) -> tuple[Writing | None, Constants, str, dict[str, Memory]]:
        """How scales are written, with its constants, how outer ones are read, and the memory."""
        writing, constants, how = None, Constants(), "none"
        buffers: dict[str, Memory] = {} if self.seed is None else {"seed": self.seed}
        if self.what == "codes":
            writing, constants, outputs = scale_writing(self.f, self.stored)
            buffers |= outputs
        if self.stored.outer is not None:
            how, buffers["outers"] = outer_of_blocks(self.f, self.stored.outer, self.shape)
        return writing, constants, how, buffers


def _run(call: _Call, plan: OnePass) -> None:
    if isinstance(plan, Lines):
        _lines(call, plan)
    elif isinstance(plan, ColumnsPlan):
        _columns(call, plan)
    else:
        _teams(call, plan)


def _outer(f: Form, x: Memory, dtype: torch.dtype, shape: Shape, beside: OnePass) -> Memory:
    """The outer scales of two levels, by a pass of their own."""
    fast = f.one_outer and isinstance(beside, Lines)
    plan = plans.lines(f, dtype, shape, "outer") if fast else None
    if plan is None:
        return choose_outer(f, x, dtype, shape)
    result = shader(f, FastOuter(**_finding(f, dtype, plan)), _constants(f, plan))
    largest = zeros(4)
    for piece in pieces(plan.at.count, 8 * dtype.itemsize, plan.step):
        blocks = piece.count // plan.at.block
        buffers = {"x": piece.window(x, 8 * dtype.itemsize), "largest": whole(largest)}
        sizes = {"block": plan.at.block, "blocks": blocks}
        launch(result, buffers, sizes, -(-blocks // plan.blocks_a_group))
    return outer_of(f, largest, 1)


def _lines(call: _Call, plan: Lines) -> None:
    f, at = call.f, plan.at
    writing, more, how, memories = call.beside()
    kernel = replace(_line_kernel(call, plan), writing=writing, given_outer=how)
    result = shader(f, kernel, _constants(f, plan) | more)
    bits = f.bits if call.what == "codes" else call.own
    for piece in pieces(at.count, call.own, plan.step):
        blocks = piece.count // at.block
        windows = {"x": piece.window(call.x, call.own), call.what: piece.window(call.out, bits)}
        buffers = {name: whole(memory) for name, memory in memories.items()} | windows
        sizes = {"block": at.block} | piece.shader_sizes | {"blocks": blocks}
        if plan.tile:
            sizes["across"] = at.shape[1] // at.sizes[1]
        launch(result, buffers, sizes, -(-blocks // plan.blocks_a_group))


def _finding(f: Form, dtype: torch.dtype, plan: Lines) -> dict[str, Any]:
    """What both kernels have in common."""
    return {
        "coding": coding(f),
        "numbers": numbers(dtype),
        "find": statistic(f),
        "team": "subgroup" if plan.team <= plans.reach() else "mixed",
        "place": "tile" if plan.tile else "line",
    }


def _line_kernel(call: _Call, plan: Lines) -> FastPath:
    f, dtype, what = call.f, call.dtype, call.what
    own = parts(f.format)
    assert own is not None
    together = plan.settings.together and what == "codes"
    return FastPath(
        **_finding(f, dtype, plan),
        parts=own,
        statistic=statistic(f),
        narrow=narrowing(f, dtype),
        result="codes_together" if together else what,
        exact_fallback=what,
        words=_words(f, dtype, plan, together),
        draws=call.draws,
    )


def _constants(f: Form, plan: Lines) -> Constants:
    settings, element = plan.settings, lowered(f.format).element
    constants: Constants = {
        "GROUP": plan.group,
        "TEAM": plan.team,
        "REACH": plans.reach(),
        "UNITS": settings.units,
        "BLOCKS": settings.blocks,
        "TOGETHER": settings.together,
        "TILE_UNITS": plan.tile,
        "POISONS": lowered(f.format).poisons,
        "MEANS": _TURNS.get(lowered(f.format).statistic, 0),
    }
    return constants | (cells(element) or {} if element.family == "codebook" else {})


def _words(f: Form, dtype: torch.dtype, plan: Lines, together: bool) -> str:
    """How many words of codes are written at once."""
    words = 16 // dtype.itemsize * f.bits * (plan.settings.units if together else 1) / 32
    return "four" if words % 4 == 0 else "two" if words % 2 == 0 else "one"


def _columns(call: _Call, plan: ColumnsPlan) -> None:
    f, at, dtype = call.f, plan.at, call.dtype
    form, element, reach = parts(f.format), lowered(f.format).element, plans.reach()
    assert form is not None
    writing, more, _, memories = call.beside()
    kernel = FastColumns(
        coding(f), numbers(dtype), form, statistic=statistic(f), find=statistic(f),
        team="subgroup", narrow=narrowing(f, dtype), result=call.what, writing=writing,
    )  # fmt: skip
    constants: Constants = {
        "GROUP": GROUP, "REACH": reach, "TEAM": 1, "COLUMNS": reach // plan.parts,
        "ROWS": plan.rows, "POISONS": lowered(f.format).poisons,
    }  # fmt: skip
    if element.family == "codebook":
        constants |= cells(element) or {}
    result, bits = shader(f, kernel, constants | more), f.bits if call.what == "codes" else call.own
    for piece in pieces(at.count, call.own, plan.step):
        down = piece.count // (at.sizes[0] * at.shape[1])
        teams = down * -(-plan.units // (reach // plan.parts))
        windows = {"x": piece.window(call.x, call.own), call.what: piece.window(call.out, bits)}
        buffers = {name: whole(memory) for name, memory in memories.items()} | windows
        sizes = {"first": piece.first, "units": plan.units, "down": down}
        launch(result, buffers, sizes, -(-teams // (GROUP // reach)))


def _teams(call: _Call, plan: Teams) -> None:
    f, at, bits = call.f, plan.at, plan.bits
    writing, more, how, memories = call.beside()
    kernel = replace(_team_kernel(call, plan), writing=writing, given_outer=how)
    result = shader(f, kernel, _team_constants(call, plan) | more)
    for piece in pieces(at.count, max(call.own, bits), plan.step):
        blocks = -(-piece.count // at.block)
        sizes = at.shader_sizes | piece.shader_sizes | {"blocks": blocks}
        if call.what == "codes":
            sizes["words"] = -(-piece.count * bits // 32)
        windows = {"x": piece.window(call.x, call.own), call.what: piece.window(call.out, bits)}
        buffers = {name: whole(memory) for name, memory in memories.items()} | windows
        launch(result, buffers, sizes, -(-blocks // (GROUP // plan.team)))


def _team_kernel(call: _Call, plan: Teams) -> Team:
    f, what = call.f, call.what
    return Team(
        coding(f),
        numbers(call.dtype),
        statistic=statistic(f),
        team=team_part(plan.team),
        finding="means" if of_means(f) else "extremes",
        keeping="held" if plan.quads <= _HELD else "reread",
        scales="kept" if what == "codes" else "dropped",
        result=what,
        draws=call.draws,
    )


def _team_constants(call: _Call, plan: Teams) -> Constants:
    form = lowered(call.f.format)
    constants: Constants = {
        "CHUNK": plan.chunk,
        "QUADS": plan.quads,
        "TEAM": plan.team,
        "TEAMS": GROUP // plan.team,
        "POISONS": form.poisons,
    }
    if call.what == "codes":
        constants["OUT_BITS"] = plan.bits
    if of_means(call.f):
        constants["ABOVE"] = form.statistic == "mean_above"
    return constants


def team_part(team: int) -> str:
    """How a team of so many merges what its members found."""
    if team == 1:
        return "alone"
    near = "subgroup" in gpu().features and team <= plans.least_subgroup()
    return "subgroup" if near else "workgroup"
