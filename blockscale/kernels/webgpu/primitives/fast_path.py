# SPDX-License-Identifier: BSD-3-Clause
"""Full blocks: scales, codes and values in one pass that keeps more of memory under way than
primitives/one_pass.py, for formats and dtypes that primitives/fast_path_plan.py knows."""

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch

from blockscale.kernels.numbers import lowered
from blockscale.kernels.webgpu.gpu.launch import launch
from blockscale.kernels.webgpu.gpu.memory import Memory, allocate, zeros
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
    outer_of,
    scale_writing,
)
from blockscale.kernels.webgpu.primitives.fast_path_plan import (
    FastParts,
    Plan,
    narrowing,
    parts,
    plan,
    reach,
)
from blockscale.kernels.webgpu.primitives.fast_path_tables import cells
from blockscale.kernels.webgpu.primitives.find import statistic
from blockscale.kernels.webgpu.primitives.form import Form, whole
from blockscale.kernels.webgpu.primitives.parts import Parts, new_parts, outer_of_blocks
from blockscale.kernels.webgpu.primitives.pieces import pieces
from blockscale.kernels.webgpu.spec import Coding

Shape = tuple[int, ...]
_TURNS = {"mean": 1, "mean_above": 2}  # of sums of magnitudes, that a mean takes


@dataclass(frozen=True)
class FastOuter(Kernel, part="kernels/fast_path_outer"):
    """The largest numerator of all blocks.

    find:  fast_path_choose/find/{find}; team: how neighbours merge what they found
    place: blocks are a "line" of neighbours in memory, or a "tile"
    """

    coding: Coding
    numbers: Numbers
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
    drawn: str
    given_outer: str = "none"
    writing: Writing | None = None


def values(
    f: Form, x: Memory, dtype: torch.dtype, shape: Shape, seed: Memory | None
) -> Memory | None:
    """Values after a round trip; None where another way has to be taken."""
    planned = plan(f, dtype, shape, "values")
    if planned is None:
        return None
    out = allocate(prod(shape) * dtype.itemsize)
    outer = None if f.inner is None else _outer(f, x, dtype, shape)
    _run(f, x, dtype, shape, planned, "values", Parts(out, outer), seed, out)
    return out


def codes(
    f: Form, x: Memory, dtype: torch.dtype, shape: Shape, seed: Memory | None
) -> tuple[Memory, Parts] | None:
    """Packed codes and their scales; None where another way has to be taken."""
    planned = plan(f, dtype, shape, "codes")
    if planned is None:
        return None
    out, made = allocate(prod(shape) * f.bits // 8), new_parts(f, shape)
    if f.inner is not None:
        made = made._replace(outer=_outer(f, x, dtype, shape))
    _run(f, x, dtype, shape, planned, "codes", made, seed, out)
    return out, made


def _outer(f: Form, x: Memory, dtype: torch.dtype, shape: Shape) -> Memory:
    """The outer scales of two levels, by a pass of their own."""
    planned = plan(f, dtype, shape, "outer") if f.one_outer else None
    if planned is None:
        return choose_outer(f, x, dtype, shape)
    kernel, largest = FastOuter(**_finding(f, dtype, planned)), zeros(4)
    made = shader(f, kernel, _constants(f, planned))
    for piece in pieces(planned.at.count, 8 * dtype.itemsize, planned.step):
        blocks = piece.count // planned.at.block
        buffers = {"x": piece.window(x, 8 * dtype.itemsize), "largest": whole(largest)}
        sizes = {"block": planned.at.block, "blocks": blocks}
        launch(made, buffers, sizes, -(-blocks // planned.blocks_a_group))
    return outer_of(f, largest, 1)


def _run(
    f: Form, x: Memory, dtype: torch.dtype, shape: Shape, planned: Plan, what: str,
    stored: Parts, seed: Memory | None, out: Memory,
) -> None:  # fmt: skip
    """what: "codes", with scales written to `stored`, or "values", where only its outer is read"""
    at, own = planned.at, 8 * dtype.itemsize
    bits = f.bits if what == "codes" else own
    kernel, constants = _kernel(f, dtype, planned, what, seed), _constants(f, planned)
    beside: dict[str, Memory] = {} if seed is None else {"seed": seed}
    if what == "codes":
        writing, more, written = scale_writing(f, stored)
        kernel, constants, beside = (
            replace(kernel, writing=writing),
            constants | more,
            beside | written,
        )
    if stored.outer is not None:
        how, beside["outers"] = outer_of_blocks(f, stored.outer, shape)
        kernel = replace(kernel, given_outer=how)
    made = shader(f, kernel, constants)
    for piece in pieces(at.count, own, planned.step):
        blocks = piece.count // at.block
        windows = {"x": piece.window(x, own), what: piece.window(out, bits)}
        buffers = {name: whole(memory) for name, memory in beside.items()} | windows
        sizes = {"block": at.block} | piece.named | {"blocks": blocks}
        if planned.tile:
            sizes["across"] = at.shape[1] // at.sizes[1]
        launch(made, buffers, sizes, -(-blocks // planned.blocks_a_group))


def _finding(f: Form, dtype: torch.dtype, planned: Plan) -> dict[str, Any]:
    """What both kernels have in common."""
    return {
        "coding": coding(f),
        "numbers": numbers(dtype),
        "find": statistic(f),
        "team": "subgroup" if planned.team <= reach() else "mixed",
        "place": "tile" if planned.tile else "line",
    }


def _kernel(f: Form, dtype: torch.dtype, planned: Plan, what: str, seed: Memory | None) -> FastPath:
    own = parts(f.format)
    assert own is not None
    together = planned.given.together and what == "codes"
    return FastPath(
        **_finding(f, dtype, planned),
        parts=own,
        statistic=statistic(f),
        narrow=narrowing(f, dtype),
        result="codes_together" if together else what,
        exact_fallback=what,
        words=_words(f, dtype, planned, together),
        drawn="undrawn" if seed is None else "drawn",
    )


def _constants(f: Form, planned: Plan) -> Constants:
    given, element = planned.given, lowered(f.format).element
    constants: Constants = {
        "GROUP": planned.group,
        "TEAM": planned.team,
        "REACH": reach(),
        "UNITS": given.units,
        "BLOCKS": given.blocks,
        "TOGETHER": given.together,
        "TILE_UNITS": planned.tile,
        "POISONS": lowered(f.format).poisons,
        "MEANS": _TURNS.get(lowered(f.format).statistic, 0),
    }
    return constants | (cells(element) or {} if element.family == "codebook" else {})


def _words(f: Form, dtype: torch.dtype, planned: Plan, together: bool) -> str:
    """How many words of codes are written at once."""
    words = 16 // dtype.itemsize * f.bits * (planned.given.units if together else 1) / 32
    return "four" if words % 4 == 0 else "two" if words % 2 == 0 else "one"
