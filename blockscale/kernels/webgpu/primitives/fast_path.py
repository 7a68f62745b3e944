# SPDX-License-Identifier: BSD-3-Clause
"""Full blocks: scales, codes and values in one pass that keeps more of memory under way than
primitives/one_pass.py, for formats and dtypes that primitives/fast_path_plan.py knows."""

from math import prod

import torch

from blockscale.kernels.numbers import lowered
from blockscale.kernels.webgpu.gpu.launch import launch
from blockscale.kernels.webgpu.gpu.memory import Memory, allocate, zeros
from blockscale.kernels.webgpu.primitives.choices import Choices, Constants, numbers, shader
from blockscale.kernels.webgpu.primitives.choose import choose_outer, outer_of, scale_writing
from blockscale.kernels.webgpu.primitives.fast_path_plan import Plan, narrowing, parts, plan, reach
from blockscale.kernels.webgpu.primitives.fast_path_tables import cells
from blockscale.kernels.webgpu.primitives.find import statistic
from blockscale.kernels.webgpu.primitives.form import Form, whole
from blockscale.kernels.webgpu.primitives.parts import Parts, new_parts, outer_of_blocks
from blockscale.kernels.webgpu.primitives.pieces import pieces

Shape = tuple[int, ...]
_TURNS = {"mean": 1, "mean_above": 2}  # of sums of magnitudes, that a mean takes


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
    choices, constants = _shader_parts(f, dtype, planned, "values")
    kernel, largest = shader("fast_path_outer", f, choices, constants), zeros(4)
    for piece in pieces(planned.at.count, 8 * dtype.itemsize, planned.step):
        blocks = piece.count // planned.at.block
        buffers = {"x": piece.window(x, 8 * dtype.itemsize), "largest": whole(largest)}
        sizes = {"block": planned.at.block, "blocks": blocks}
        launch(kernel, buffers, sizes, -(-blocks // planned.blocks_a_group))
    return outer_of(f, largest, 1, {"statistic": statistic(f)})


def _run(
    f: Form, x: Memory, dtype: torch.dtype, shape: Shape, planned: Plan, what: str,
    made: Parts, seed: Memory | None, out: Memory,
) -> None:  # fmt: skip
    """what: "codes", with scales written to `made`, or "values", where only its outer is read"""
    at, own = planned.at, 8 * dtype.itemsize
    bits = f.bits if what == "codes" else own
    choices, constants = _shader_parts(f, dtype, planned, what)
    beside: dict[str, Memory] = {} if seed is None else {"seed": seed}
    choices["drawn"] = "undrawn" if seed is None else "drawn"
    if what == "codes":
        writing, more, written = scale_writing(f, made)
        choices, constants, beside = choices | writing, constants | more, beside | written
    if made.outer is not None:
        choices["given_outer"], beside["outers"] = outer_of_blocks(f, made.outer, shape)
    kernel = shader("fast_path", f, choices, constants)
    for piece in pieces(at.count, own, planned.step):
        blocks = piece.count // at.block
        windows = {"x": piece.window(x, own), what: piece.window(out, bits)}
        buffers = {name: whole(memory) for name, memory in beside.items()} | windows
        sizes = {"block": at.block} | piece.named | {"blocks": blocks}
        if planned.tile:
            sizes["across"] = at.shape[1] // at.sizes[1]
        launch(kernel, buffers, sizes, -(-blocks // planned.blocks_a_group))


def _shader_parts(
    f: Form, dtype: torch.dtype, planned: Plan, what: str
) -> tuple[Choices, Constants]:
    own, given = parts(f.format), planned.given
    assert own is not None
    family = own["family"]
    together = given.together and what == "codes"
    choices = {
        **numbers(dtype),
        **own,
        "statistic": statistic(f),
        "team": "subgroup" if planned.team <= reach() else "mixed",
        "place": "tile" if planned.tile else "line",
        "find": statistic(f),
        "narrow": narrowing(f, dtype),
        "result": "codes_together" if together else what,
        "exact_fallback": what,
        "given_outer": "none",
        "words": _words(f, dtype, planned, together),
    }
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
    if family == "codebook":
        constants |= cells(lowered(f.format).element) or {}
    return choices, constants


def _words(f: Form, dtype: torch.dtype, planned: Plan, together: bool) -> str:
    """How many words of codes are written at once."""
    words = 16 // dtype.itemsize * f.bits * (planned.given.units if together else 1) / 32
    return "four" if words % 4 == 0 else "two" if words % 2 == 0 else "one"
