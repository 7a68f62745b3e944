# SPDX-License-Identifier: BSD-3-Clause
"""What the fast path (primitives/fast_path.py) can do, and how much an invocation takes of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import lcm
from typing import NamedTuple

import torch

from blockscale.core.element import ElementNumbers
from blockscale.core.format import Format
from blockscale.kernels.numbers import FormatNumbers, lowered
from blockscale.kernels.webgpu.gpu.device import gpu
from blockscale.kernels.webgpu.gpu.probe import arithmetic
from blockscale.kernels.webgpu.gpu.shader import Roles
from blockscale.kernels.webgpu.primitives import fast_path_sums
from blockscale.kernels.webgpu.primitives.fast_path_tables import cells
from blockscale.kernels.webgpu.primitives.form import Form
from blockscale.kernels.webgpu.primitives.geometry import Geometry, geometry
from blockscale.kernels.webgpu.primitives.pieces import STEP, largest
from blockscale.kernels.webgpu.spec import FormatRoles, bits_of, shader_of

Shape = tuple[int, ...]
DTYPES = (torch.float32, torch.bfloat16)
_NVIDIA, _WARP = 0x10DE, 32
_MOST = 16  # units that an invocation keeps in registers
_MET = (
    20  # bytes of a workgroup's memory in which an invocation meets others (statistics/team/mixed)
)
_TABLES = 1024  # and those of tables and of what teams share, together
_UNUSUAL = {"offset", "float_zero", "signed", "given", "inner"}  # features that parts do not know


class Settings(NamedTuple):
    """How much an invocation takes.

    units:    of 16 bytes, of a block
    blocks:   that it takes part in
    group:    invocations of a workgroup, at least
    together: its units are neighbours, not a team apart
    """

    units: int
    blocks: int = 1
    group: int = 256
    together: bool = False


class Plan(NamedTuple):
    """How a tensor is taken.

    at: its blocks; given: what an invocation takes; team: invocations of a block
    group: of a workgroup; tile: units of a row of a tile, 0 where blocks follow one another
    step: elements of which pieces are multiples
    """

    at: Geometry
    given: Settings
    team: int
    group: int
    tile: int
    step: int

    @property
    def blocks_a_group(self) -> int:
        """Blocks that a workgroup takes."""
        return self.group // self.team * self.given.blocks


@dataclass(frozen=True)
class FastParts(Roles):
    """The roles of the fast path's parts that a format fills.

    family:      fast_path_code/{family}, how codes are found; tie_break: those beside ties
    fast_choose: fast_path_choose/{fast_choose}, how scales are chosen
    scaled:      fast_path_code/scaled/{scaled}, how numbers are divided by them
    mean, range: what is found of blocks beside extremes, fast_path_choose/mean/… and …/range/…
    """

    family: str
    fast_choose: str
    scaled: str
    tie_break: str
    mean: str
    range: str


@cache
def parts(fmt: Format) -> FastParts | None:
    """The parts of shaders that a format asks for, or None where there are none.

    They know of elements of at most 8 bits that are rounded to nearest or, under shared powers of
    two, stochastically, and of scales that are such powers, float32, or minifloats under a float32.
    """
    numbers, own = lowered(fmt), shader_of(fmt)[0]
    if _UNUSUAL & set(numbers.features) or numbers.recip or numbers.element.bits > 8:
        return None
    means = numbers.statistic in ("mean", "mean_above")
    if own.approximate == "none" or not (means or numbers.statistic in ("magnitude", "range")):
        return None
    family, rule = own.approximate, _rule(numbers, own)
    drawn = family.startswith("stochastic")
    if rule is None or (numbers.asym and (rule != "float" or family != "integer")):
        return None
    if drawn and own.how != "shift":
        return None
    if family == "codebook" and (own.how == "shift" or cells(numbers.element) is None):
        return None
    near = "shift_drawn" if drawn else own.how
    if means and rule != "float":
        return None
    if means:
        return FastParts(family, "means", near, family, mean="sums", range="means")
    return FastParts(family, rule, near, family, mean="none", range="extremes")


def _rule(numbers: FormatNumbers, own: FormatRoles) -> str | None:
    """The part fast_path_choose/{rule}."""
    if numbers.scale == "e8m0":
        return "any"
    if numbers.full or own.how != "quotient":
        return None
    if numbers.scale == "fp32":
        return "float"
    inner = own.inner == "minifloat" and own.joined == "multiplied"
    return "two_level" if inner and own.levels == "joint" and not numbers.asym else None


def narrowing(f: Form, dtype: torch.dtype) -> str:
    """The part fast_path_memory/narrow/{narrowing}: how values become numbers of the dtype."""
    if dtype == torch.float32:
        return "none"
    numbers = lowered(f.format)
    exact = numbers.scale == "e8m0" and _is_bfloat16(numbers.element)
    return "exact" if exact else "bfloat16"


def _is_bfloat16(element: ElementNumbers) -> bool:
    """Whether an element's values have no more bits than a bfloat16."""
    if element.family == "codebook":
        return not any(bits_of(value) & 0xFFFF for value in element.values if value == value)
    return element.bits <= 8


def trusted(dtype: torch.dtype) -> bool:
    """Whether the device, and numbers of this dtype, are what these kernels are made for."""
    return arithmetic() != "native" and "subgroup" in gpu().features and dtype in DTYPES


def plan(
    f: Form, dtype: torch.dtype, shape: Shape, what: str, wanted: Settings | None = None
) -> Plan | None:
    """How codes ("codes") or values ("values") of a tensor are made, or None: another way is taken.

    That is where parts are missing, where blocks are cut off or one of them is more than a kernel
    sees, and on devices that do not tell of neighbours far enough away, or round otherwise. Where
    floats are a CPU's, others are faster.

    wanted: what an invocation takes, in the place of what was measured to be best
    """
    if not trusted(dtype):
        return None
    own = parts(f.format)
    if own is None or fast_path_sums.refusal() is not None:
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
    each = possible(at, dtype, what) if wanted is None else iter((wanted,))
    fitting = (_planned(f, at, dtype, what, given, tile, step) for given in each)
    return next((found for found in fitting if found is not None), None)


def _tile(at: Geometry, bits: int, code_bits: int) -> int | None:
    """Units of a row of a tile; 0 where blocks follow one another, None where they are else."""
    if not at.shape:
        return 0
    if len(at.shape) != 2 or any(n % size for n, size in zip(at.shape, at.sizes, strict=True)):
        return None
    row = at.sizes[1]
    return row * bits // 128 if row * bits % 128 == 0 and row * code_bits % 32 == 0 else None


def _planned(
    f: Form, at: Geometry, dtype: torch.dtype, what: str, given: Settings, tile: int, step: int
) -> Plan | None:
    """A plan, if the device's neighbours reach far enough for it."""
    units = at.block * dtype.itemsize // 16
    team = units // given.units
    if units % given.units or team & (team - 1) or given.units * given.blocks > _MOST:
        return None
    group, limits = max(given.group, team), gpu().limits
    if group > limits["max-compute-invocations-per-workgroup"]:
        return None
    if team > reach() and group * _MET > limits["max-compute-workgroup-storage-size"] - _TABLES:
        return None
    if given.together and tile % given.units:
        return None
    if what == "codes" and not _fills_words(f, dtype, given, team):
        return None
    return Plan(at, given, team, group, tile, step)


def _fills_words(f: Form, dtype: torch.dtype, given: Settings, team: int) -> bool:
    """Whether an invocation's codes, or those of neighbours within reach, are whole words, and so
    are scales."""
    unit_bits, scale_bits = 16 // dtype.itemsize * f.bits, 8 * f.scale_dtype.itemsize
    if scale_bits < 32 and team * (32 // scale_bits) // given.blocks > reach():
        return False
    if given.together:
        return given.units * unit_bits % 32 == 0
    return team * unit_bits % 32 == 0 and (unit_bits in (24, 48, 64) or 32 % unit_bits == 0)


def reach() -> int:
    """How many neighbours are in one subgroup for certain: wgpu's least number is a guess."""
    info = gpu().device.adapter.info
    if info["vendor_id"] == _NVIDIA:
        return _WARP
    return int(info.get("subgroup_min_size") or info.get("stackgroup_min_size") or 4)


def possible(at: Geometry, dtype: torch.dtype, what: str) -> Iterator[Settings]:
    """What an invocation may take, the fastest first (docs/webgpu.md, "Speed")."""
    units = at.block * dtype.itemsize // 16
    if units > 8 * _WARP:  # rows and large tiles, of which a workgroup takes one
        yield from (Settings(8), Settings(4)) if units >= 2048 else (Settings(4), Settings(8))
    few, more = Settings(2, together=True), Settings(4, together=True)
    if what == "codes":
        yield from (more, few) if dtype == torch.float32 else (few, more)
    if what == "outer":
        yield from (Settings(1, 8), Settings(1, 4), Settings(2, 4))
    yield from (Settings(2), Settings(4), Settings(1), Settings(8), Settings(16))
    if what == "codes":
        yield Settings(8, together=True)  # of odd numbers of bits these are words
    yield from (Settings(4, 2), Settings(2, 2), Settings(2, 4))  # where few neighbours are in reach
