"""Blocks that follow one another and are all full: scales, codes and values in one pass that keeps
more of memory under way than primitives/once.py, where that was measured to be faster."""

from math import lcm, prod
from typing import NamedTuple

import torch

from blockscale.kernels.numbers import lowered
from blockscale.kernels.webgpu.gpu.device import gpu
from blockscale.kernels.webgpu.gpu.launch import launch
from blockscale.kernels.webgpu.gpu.memory import Memory, allocate
from blockscale.kernels.webgpu.gpu.probe import arithmetic
from blockscale.kernels.webgpu.primitives import swift_sums
from blockscale.kernels.webgpu.primitives.choices import Choices, Constants, numbers, shader
from blockscale.kernels.webgpu.primitives.choose import scale_writing
from blockscale.kernels.webgpu.primitives.find import statistic
from blockscale.kernels.webgpu.primitives.form import Form, whole
from blockscale.kernels.webgpu.primitives.geometry import Geometry, geometry
from blockscale.kernels.webgpu.primitives.parts import Parts, new_parts
from blockscale.kernels.webgpu.primitives.pieces import STEP, largest, pieces
from blockscale.kernels.webgpu.spec import shader_of

Shape = tuple[int, ...]
_NVIDIA, _WARP = 0x10DE, 32
_FULL, _HALF = torch.float32, torch.bfloat16


class Settings(NamedTuple):
    """How much an invocation takes.

    units:  of 16 bytes, of a block
    blocks: that it takes part in
    group:  invocations of a workgroup
    """

    units: int
    blocks: int = 1
    group: int = 256


_IN_SMALL_SUBGROUPS = Settings(4), Settings(4, 2)  # less sharing, where that is too much

# The fastest that were measured on an H200 (docs/webgpu.md, "Speed"), by what is written. Other
# formats and dtypes were not, or were not faster.
_MX = "{}:group32:e8m0/floor"
_BFP8 = "int8:group64:e8m0/floor"
_INT8, _INT8_LONG, _INT4 = "int8:group32:fp32", "int8:group128:fp32", "int4:group128:fp32"
_INT4_SHORT, _UINT8 = "int4:group32:fp32", "uint8:group32:fp32:asym"
_SETTINGS = {
    "values": {
        (_MX.format("e4m3"), _FULL): Settings(2, 2),
        (_MX.format("e3m2"), _FULL): Settings(2, 2),
        (_MX.format("e2m1"), _FULL): Settings(2, 2),
        (_MX.format("int8"), _FULL): Settings(2, 2),
        (_BFP8, _FULL): Settings(4),
        (_MX.format("e4m3"), _HALF): Settings(2),
        (_MX.format("e3m2"), _HALF): Settings(2),
        (_MX.format("e2m1"), _HALF): Settings(2),
        (_MX.format("int8"), _HALF): Settings(2),
        (_BFP8, _HALF): Settings(2),
        (_INT8, _FULL): Settings(1),
        (_INT8, _HALF): Settings(2),
        (_INT8_LONG, _FULL): Settings(4),
        (_INT8_LONG, _HALF): Settings(2),
        (_INT4, _FULL): Settings(4),
        (_INT4, _HALF): Settings(2),
        (_INT4_SHORT, _FULL): Settings(1),
        (_INT4_SHORT, _HALF): Settings(2),
        (_UINT8, _FULL): Settings(2),
        (_UINT8, _HALF): Settings(1, 4),
    },
    "codes": {
        (_MX.format("e4m3"), _FULL): Settings(2),
        (_MX.format("e2m1"), _FULL): Settings(2),
        (_MX.format("int8"), _FULL): Settings(2),
        (_BFP8, _FULL): Settings(4),
        (_MX.format("e4m3"), _HALF): Settings(2),
        (_MX.format("e2m1"), _HALF): Settings(2),
        (_MX.format("int8"), _HALF): Settings(1, 2),
        (_BFP8, _HALF): Settings(2),
        (_INT8, _FULL): Settings(2),
        (_INT8, _HALF): Settings(1, 2),
        (_INT8_LONG, _FULL): Settings(4),
        (_INT8_LONG, _HALF): Settings(2),
        (_INT4, _FULL): Settings(2),
        (_INT4, _HALF): Settings(2),
        (_INT4_SHORT, _FULL): Settings(2),
        (_INT4_SHORT, _HALF): Settings(1, 2),
        (_UINT8, _FULL): Settings(2),
        (_UINT8, _HALF): Settings(1, 4),
    },
}


def settings(f: Form, dtype: torch.dtype, shape: Shape, what: str) -> Settings | None:
    """How "codes" or "values" are written, or None where another way has to be taken.

    That is where nothing was measured, where blocks are cut off or lie as boxes or one of them is
    more than a kernel sees, and on devices that do not tell of neighbours far enough away, or round
    otherwise. Where floats are a CPU's, others are faster.
    """
    found = _SETTINGS[what].get((str(f.format), dtype))
    if found is None or arithmetic() == "native" or "subgroup" not in gpu().features:
        return None
    at, bits = geometry(shape, f.format.block), 8 * dtype.itemsize
    ((_, full),) = f.format.block.sizes  # a row shorter than a block has a cut-off one: at.block
    if at.shape or at.block < full or at.count % full or largest(bits, lcm(full, STEP)) == 0:
        return None
    if swift_sums.refusal() is not None:
        return None
    each = (found, *_IN_SMALL_SUBGROUPS)
    return next((given for given in each if _needed(f, at, dtype, given, what) <= _reach()), None)


def _needed(f: Form, at: Geometry, dtype: torch.dtype, given: Settings, what: str) -> int:
    """How many neighbours have to be in one subgroup."""
    team = _team(at, dtype, given)
    if what == "values":
        return team
    # scales of neighbouring blocks are put together to words
    return max(team, team * 32 // (8 * f.scale_dtype.itemsize) // given.blocks)


def _team(at: Geometry, dtype: torch.dtype, given: Settings) -> int:
    """How many invocations share a block."""
    return at.block * dtype.itemsize // (16 * given.units)


def _reach() -> int:
    """How many neighbours are in one subgroup for certain: wgpu's least number is a guess."""
    info = gpu().device.adapter.info
    if info["vendor_id"] == _NVIDIA:
        return _WARP
    return int(info.get("subgroup_min_size") or info.get("stackgroup_min_size") or 4)


def values(f: Form, x: Memory, dtype: torch.dtype, shape: Shape) -> Memory | None:
    """Values after a round trip; None where another way has to be taken."""
    given = settings(f, dtype, shape, "values")
    if given is None:
        return None
    out = allocate(prod(shape) * dtype.itemsize)
    _run(f, x, dtype, shape, given, "values", Parts(out), out)
    return out


def codes(f: Form, x: Memory, dtype: torch.dtype, shape: Shape) -> tuple[Memory, Parts] | None:
    """Packed codes and their scales; None where another way has to be taken."""
    given = settings(f, dtype, shape, "codes")
    if given is None:
        return None
    out, parts = allocate(prod(shape) * f.bits // 8), new_parts(f, shape)
    _run(f, x, dtype, shape, given, "codes", parts, out)
    return out, parts


def _run(
    f: Form, x: Memory, dtype: torch.dtype, shape: Shape, given: Settings, what: str,
    parts: Parts, out: Memory,
) -> None:  # fmt: skip
    """what: "codes", with scales written to `parts`, or "values", which does without"""
    at, own = geometry(shape, f.format.block), 8 * dtype.itemsize
    bits, team = f.bits if what == "codes" else own, _team(at, dtype, given)
    choices, constants = _shader_parts(f, dtype, given, team, what)
    beside: dict[str, Memory] = {}
    if what == "codes":
        writing, more, beside = scale_writing(f, parts)
        choices, constants = choices | writing, constants | more
    made = shader("swift", f, choices, constants)
    for piece in pieces(at.count, own, lcm(at.block, STEP)):
        blocks = piece.count // at.block
        windows = {"x": piece.window(x, own), what: piece.window(out, bits)}
        buffers = {name: whole(memory) for name, memory in beside.items()} | windows
        sizes = at.named | piece.named | {"blocks": blocks}
        launch(made, buffers, sizes, -(-blocks // (given.group // team * given.blocks)))


def _shader_parts(
    f: Form, dtype: torch.dtype, given: Settings, team: int, what: str
) -> tuple[Choices, Constants]:
    choices = {
        **numbers(dtype),
        "statistic": statistic(f),
        "family": dict(shader_of(f.format)[0])["quick"],
        "team": "subgroup",
        "swift_find": statistic(f),
        "swift": "any" if lowered(f.format).scale == "e8m0" else "float",
        "narrow": _narrow(f, dtype),
        "result": what,
        "given_outer": "none",
        "drawn": "undrawn",
    }
    constants: Constants = {
        "GROUP": given.group,
        "TEAM": team,
        "UNITS": given.units,
        "BLOCKS": given.blocks,
        "POISONS": lowered(f.format).poisons,
    }
    return choices, constants


def _narrow(f: Form, dtype: torch.dtype) -> str:
    """How values become numbers of the dtype: of steps that are powers of two, they are some."""
    if dtype == torch.float32:
        return "none"
    return "exact" if lowered(f.format).scale == "e8m0" else "bfloat16"
