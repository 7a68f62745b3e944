# SPDX-License-Identifier: BSD-3-Clause
"""Which way a tensor is quantized whose scales are chosen: in one pass over memory, or in two.

One pass reads numbers once: invocations that share a block agree on its scale, and write its codes
or values while they have its numbers at hand. Two passes find what scales are chosen from first
(choose.py), and read the numbers again to encode them (encode.py). `plan` has the rule.
"""

from collections.abc import Iterator
from math import lcm
from typing import NamedTuple

import torch

from blockscale.kernels.numbers import lowered
from blockscale.kernels.webgpu.gpu.device import gpu
from blockscale.kernels.webgpu.gpu.probe import arithmetic
from blockscale.kernels.webgpu.primitives import fast_path
from blockscale.kernels.webgpu.primitives.choose import GROUP, stored_bits, team_of
from blockscale.kernels.webgpu.primitives.encode import chunk_of, written_bits
from blockscale.kernels.webgpu.primitives.fast_path import parts
from blockscale.kernels.webgpu.primitives.form import STEP, Form, Geometry, geometry, largest

Shape = tuple[int, ...]
DTYPES = (torch.float32, torch.bfloat16)
_NVIDIA, _WARP = 0x10DE, 32
_MOST = 16  # units of 16 bytes that an invocation keeps in registers
_MET = 20  # bytes of a workgroup's memory in which an invocation meets others (…/team/mixed)
_TABLES = 1024  # and those of tables and of what teams share, together
_ROWS = 8  # of columns that an invocation takes at least, if there are so many
_QUADS = 64  # fours of numbers that an invocation of a team reads at all
_FOURS = 4  # of numbers that it reads, where it takes several
_ALONE = 128  # elements of a block that one invocation takes where a CPU computes


class Settings(NamedTuple):
    """How much an invocation takes of lines and tiles.

    units:    of 16 bytes, of a block
    blocks:   that it takes part in
    group:    invocations of a workgroup, at least
    together: its units are neighbours, not a team apart
    """

    units: int
    blocks: int = 1
    group: int = 256
    together: bool = False


class Lines(NamedTuple):
    """One pass over blocks of whole units of 16 bytes: lines of neighbours in memory, or tiles.

    at: its blocks; settings: what an invocation takes; team: invocations of a block
    group: of a workgroup; tile: units of a row of a tile, 0 where blocks are lines
    step: elements of which pieces are multiples
    """

    at: Geometry
    settings: Settings
    team: int
    group: int
    tile: int
    step: int

    @property
    def blocks_a_group(self) -> int:
        """Blocks that a workgroup takes."""
        return self.group // self.team * self.settings.blocks


class ColumnsPlan(NamedTuple):
    """One pass over blocks along the columns of a matrix.

    at: blocks; units: of 16 bytes of a row of the matrix; parts: neighbours that share a column;
    rows: that each takes; step: elements of which pieces are multiples
    """

    at: Geometry
    units: int
    parts: int
    rows: int
    step: int


class Teams(NamedTuple):
    """One pass over blocks that follow one another, of any length that a workgroup sees at once.

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


class TwoPasses(NamedTuple):
    """Scales first, then what they make of the numbers."""


OnePass = Lines | ColumnsPlan | Teams
Plan = OnePass | TwoPasses


def plan(f: Form, dtype: torch.dtype, shape: Shape, what: str, *, fours: bool = True) -> Plan:
    """How "codes" (with their scales) or "values" of a tensor, which is not empty, are made.

    One pass, by the first case that fits:

    * lines and tiles, full blocks of whole units of 16 bytes, of formats that the fast path knows
      (fast_path_parts.parts), on devices whose neighbours tell each other what they found;
    * columns: the same of full blocks one element wide, without zero points;
    * teams: blocks that follow one another, even where the last is cut off, of any format, as long
      as a workgroup sees a whole one.

    Else two: boxes, blocks of other tensors that are cut off or larger, few elements a scale.

    fours: random numbers are drawn from a multiple of four on, or none are
    """
    one = lines(f, dtype, shape, what) if fours else None
    return one or columns(f, dtype, shape, what) or teams(f, dtype, shape, what) or TwoPasses()


def suits(dtype: torch.dtype) -> bool:
    """Whether the device, and numbers of this dtype, are what the fast path is made for: devices
    that tell of neighbours and round sums as they should. Where floats are a CPU's, others are
    faster."""
    able = arithmetic() != "native" and "subgroup" in gpu().features and dtype in DTYPES
    return able and fast_path.refusal() is None


def lines(
    f: Form, dtype: torch.dtype, shape: Shape, what: str, settings: Settings | None = None
) -> Lines | None:
    """A plan for lines or tiles, if they are such.

    what: "codes", "values", or the "outer" scale alone
    wanted: what an invocation takes, in the place of what was measured to be best
    """
    if not suits(dtype) or parts(f.format) is None:
        return None
    at, bits = geometry(tuple(shape), f.format.block), 8 * dtype.itemsize
    tile = _tile(at, bits, f.bits)
    if what == "codes" and not f.streams(shape[-1] if shape else 1):
        return None
    if tile is None or at.count % at.block or (at.block * bits) % 128:
        return None
    step = lcm(at.block if not tile else at.sizes[0] * at.shape[1], STEP)
    if largest(bits, step) == 0:
        return None
    each = possible(at, dtype, what) if settings is None else iter((settings,))
    fitting = (_lines(f, at, dtype, what, inputs, tile, step) for inputs in each)
    return next((result for result in fitting if result is not None), None)


def _tile(at: Geometry, bits: int, code_bits: int) -> int | None:
    """Units of a row of a tile; 0 where blocks follow one another, None where they are else."""
    if not at.shape:
        return 0
    if len(at.shape) != 2 or any(n % size for n, size in zip(at.shape, at.sizes, strict=True)):
        return None
    row = at.sizes[1]
    return row * bits // 128 if row * bits % 128 == 0 and row * code_bits % 32 == 0 else None


def _lines(
    f: Form,
    at: Geometry,
    dtype: torch.dtype,
    what: str,
    settings: Settings,
    tile: int,
    step: int,
) -> Lines | None:
    """A plan, if the device's neighbours reach far enough for it."""
    units = at.block * dtype.itemsize // 16
    team = units // settings.units
    if units % settings.units or team & (team - 1) or settings.units * settings.blocks > _MOST:
        return None
    group, limits = max(settings.group, team), gpu().limits
    if group > limits["max-compute-invocations-per-workgroup"]:
        return None
    if team > reach() and group * _MET > limits["max-compute-workgroup-storage-size"] - _TABLES:
        return None
    if settings.together and tile % settings.units:
        return None
    if what == "codes" and not _fills_words(f, dtype, settings, team):
        return None
    return Lines(at, settings, team, group, tile, step)


def _fills_words(f: Form, dtype: torch.dtype, settings: Settings, team: int) -> bool:
    """Whether an invocation's codes, or those of neighbours within reach, are whole words, and so
    are scales."""
    unit_bits, scale_bits = 16 // dtype.itemsize * f.bits, 8 * f.scale_dtype.itemsize
    if scale_bits < 32 and team * (32 // scale_bits) // settings.blocks > reach():
        return False
    if settings.together:
        return settings.units * unit_bits % 32 == 0
    return team * unit_bits % 32 == 0 and (unit_bits in (24, 48, 64) or 32 % unit_bits == 0)


def reach() -> int:
    """How many neighbours are in one subgroup for certain: wgpu's least number is a guess."""
    return _WARP if gpu().device.adapter.info["vendor_id"] == _NVIDIA else least_subgroup()


def least_subgroup() -> int:
    """wgpu's least number of neighbours in one subgroup."""
    info = gpu().device.adapter.info
    return int(info.get("subgroup_min_size") or info.get("stackgroup_min_size") or 4)


def possible(at: Geometry, dtype: torch.dtype, what: str) -> Iterator[Settings]:
    """What an invocation may take, the fastest first (docs/webgpu.md, "Speed")."""
    units = at.block * dtype.itemsize // 16
    if units > 8 * _WARP:  # rows and large tiles, of which a workgroup takes one
        yield from ((Settings(8), Settings(4)) if units >= 2048 else (Settings(4), Settings(8)))
    few, more = Settings(2, together=True), Settings(4, together=True)
    if what == "codes":
        yield from (more, few) if dtype == torch.float32 else (few, more)
    if what == "outer":
        yield from (Settings(1, 8), Settings(1, 4), Settings(2, 4))
    yield from (
        Settings(2),
        Settings(4),
        Settings(1),
        Settings(8),
        Settings(16),
    )
    if what == "codes":
        yield Settings(8, together=True)  # of odd numbers of bits these are words
    yield from (
        Settings(4, 2),
        Settings(2, 2),
        Settings(2, 4),
    )  # where few neighbours are in reach


def columns(f: Form, dtype: torch.dtype, shape: Shape, what: str) -> ColumnsPlan | None:
    """A plan for blocks along columns, if they are such."""
    at, bits = geometry(tuple(shape), f.format.block), 8 * dtype.itemsize
    if len(at.shape) != 2 or at.sizes[1] != 1 or at.shape[0] % at.sizes[0]:
        return None
    own = parts(f.format)
    if not suits(dtype) or own is None or own.fast_choose not in ("any", "float") or f.asym:
        return None
    if own.scaled == "shift_drawn":
        return None
    units, rest = divmod(at.shape[1] * bits, 128)
    block, unit_bits = at.sizes[0], 128 // bits * f.bits
    shared = 1 << max((block // _ROWS).bit_length() - 1, 0)
    shared = min(shared, reach() // 2)
    rows, step = block // shared, lcm(block * at.shape[1], STEP)
    if rest or block % shared or rows > _MOST or largest(bits, step) == 0:
        return None
    together = GROUP // shared * 128 // bits  # columns: a workgroup's memory holds four words each
    if 16 * together > gpu().limits["max-compute-workgroup-storage-size"] - _TABLES:
        return None
    if what == "codes" and (unit_bits not in (32, 64) or not f.streams(shape[-1])):
        return None
    return ColumnsPlan(at, units, shared, rows, step)


def teams(f: Form, dtype: torch.dtype, shape: Shape, what: str) -> Teams | None:
    """A plan for any blocks that follow one another, if a workgroup sees a whole one."""
    at, bits = geometry(tuple(shape), f.format.block), 8 * dtype.itemsize
    bits = written_bits(f, shape) if what == "codes" else bits
    chunk = chunk_of(bits, dtype)
    if at.shape or not at.shares(chunk):
        return None
    if gpu().software and at.block <= _ALONE and at.block % chunk == 0:
        chunk = at.block  # what waits for others costs most there
    chunks = -(-at.block // chunk)
    team = team_of(-(-chunks // chunks_of_one(f, chunk)))
    quads = -(-chunks // team) * chunk // 4
    small = min(stored_bits(f)) if what == "codes" else 32
    if quads > _QUADS or GROUP // team * small % 32 or f.format.unchosen is not None:
        return None  # words of scales would belong to two workgroups
    widest, step = max(8 * dtype.itemsize, bits), STEP
    if at.count > largest(widest):
        step = lcm(at.block, STEP)
        if at.blocks == 1 or largest(widest, step) == 0:
            return None  # pieces would be parts of blocks
    return Teams(at, bits, chunk, team, quads, step)


def chunks_of_one(f: Form, chunk: int) -> int:
    """How many chunks of elements an invocation takes at least, where a block has as many.

    More of them keep more of memory under way, and more registers busy. Measured on an H200, as
    shares of a copy, with one and with `_FOURS` of numbers (docs/webgpu.md): fake_quantize of
    `bfp8` .58 and .84, of `int4` .55 and .83, of `mxfp8` .56 and .46; quantize of `bfp8` .43 and
    .64, of `mxint8` .46 and .50, of `mxfp8` .43 and .35.
    """
    minifloat = lowered(f.format).element.family == "minifloat"
    return 1 if gpu().software or minifloat else max(1, 4 * _FOURS // chunk)
