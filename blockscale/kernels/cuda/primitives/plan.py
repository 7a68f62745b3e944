# SPDX-License-Identifier: BSD-3-Clause
"""What kernels know of a format, the settings they are compiled with, and which kernel runs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.reference import FLOATS, QParams
from blockscale.core.scales import TwoLevel
from blockscale.kernels.cuda import interpreting, takes
from blockscale.kernels.cuda.device.lanes import NO_NARROWING, narrowing
from blockscale.kernels.cuda.primitives.tiling import (
    BlockedMatrix,
    Tile,
    Tiling,
    blocks_of,
    groups,
    packs,
    tiling,
)
from blockscale.kernels.cuda.spec import Spec, of_gradient, spec
from blockscale.kernels.operand import Device, Storage, in_order

# A format, and the tensors of a call, as the primitives' kernels take them.


class Form(Storage):
    """A format as the primitives take it: how its tensors are stored, and what kernels ask of it.

    spec:      its numbers
    inner:     the format of the scale's own scale, for two levels; else None
    means:     scales are chosen from means of magnitudes
    one_outer: there is one outer scale for everything
    row_outer: there is one for each row of scales. Both are chosen by a pass of their own
    """

    def __init__(self, fmt: Format):
        super().__init__(fmt)
        self.spec = spec(fmt.spelling)
        self.inner = fmt.scale.inner if isinstance(fmt.scale, TwoLevel) else None
        self.means = self.spec.statistic in ("mean", "mean_above")
        self.one_outer = self.inner is not None and self.inner.block.name == "tensor"
        self.row_outer = self.inner is not None and self.inner.block.name == "token"

    def checked_codes(
        self, packed: Tensor, shape: tuple[int, ...], device: Device = None
    ) -> Tensor:
        """As `Storage.checked_codes`; `device` is that of the codes, which kernels must reach."""
        on_device(packed)
        return super().checked_codes(packed, shape, device or packed.device)

    def given_parts(
        self, x: Tensor, shape: Sequence[int], scale: Tensor, zero: Tensor | None,
        outer: Tensor | None, more: Sequence[Tensor] | None = None,
    ) -> QParams:  # fmt: skip
        """A caller's scale for a tensor of `shape`, on x's device and as `per_block` gives it.

        Raises ValueError if it does not fit.
        """
        shape = torch.Size(shape)
        return self.per_block(self.checked_parts(shape, scale, zero, outer, x.device, more))

    def per_block(self, parts: QParams) -> QParams:
        """The same with an outer scale for each block, unless there is only one at all."""
        if self.inner is None or self.one_outer:
            return parts
        assert parts.outer is not None
        shape = parts.scale.shape
        outer = self.inner.block.expand(parts.outer, shape).expand(shape).contiguous()
        return parts._replace(outer=outer)


@cache
def form(spelling: str) -> Form:
    """The Form of a format's name or spelling. Raises ValueError if there is no such format."""
    return Form(parse(spelling))


def floats(x: Tensor) -> Tensor:
    """Numbers as kernels read them: contiguous, at a multiple of four bytes.

    Raises TypeError for a dtype that the reference refuses, ValueError if x is not on a GPU.
    """
    if x.dtype not in FLOATS:
        reference.widen(x)
    on_device(x)
    return in_order(x, 4)  # kernels may read 32 bits


def on_device(x: Tensor) -> None:
    """Raises ValueError if the kernels cannot reach x's memory."""
    if not (x.is_cuda or takes(x.device.type)):
        raise ValueError(f"expected a tensor on a CUDA device, found one on {x.device}")


def seed_numbers(fmt: Form, seed: Tensor | None, x: Tensor) -> tuple[Tensor | None, int]:
    """The seed on x's device, and how many numbers it holds; None and 0 where none is needed.

    seed: int64 [] or [2]. Raises ValueError if it is missing or something else.
    """
    numbers = fmt.checked_seed(seed, anywhere=True)
    if numbers is None:
        return None, 0
    return numbers.to(x.device, non_blocking=True).contiguous(), numbers.numel()


# Launch settings of the primitives: elements and warps of a program, measured on an H200.
#
# `python -m benchmarks.gpu_primitives --sweep` measured them, on [16384, 16384] in float32 and
# bfloat16: what mattered was how many elements a thread holds, not the format, dtype or direction.


@dataclass(frozen=True)
class Setting:
    """How a kernel is launched.

    elements: of a tile, which has one unit at least
    warps: of 32 threads, for each program
    unit: elements of a part of a block, at most about so many
    registers: of a thread at most, or 0 for as many as the compiler takes
    """

    elements: int
    warps: int
    unit: int = 1024
    registers: int = 0


INTERPRETED = Setting(16384, 4)  # it pays for each program, not for its size
ALONG = Setting(2048, 2)  # units along the last dimension: 32 elements a thread
PACKED = Setting(4096, 4)  # the same, where codes of less than a byte are written
PACKED_LEAN = Setting(4096, 4, registers=64)
ACROSS = Setting(4096, 2)  # several rows in a unit: each thread holds whole columns
PACKED_ACROSS = Setting(8192, 4)
LEAN_ACROSS = Setting(2048, 1, registers=128)  # a warp has all rows: nothing waits for another
PACKED_LEAN_ACROSS = Setting(2048, 1)
ODD_BOXES = Setting(2048, 2)  # rows of odd length, of which no two neighbours move together
MERGED = Setting(8192, 4, unit=8192)  # one atomic operation a unit


class Large(NamedTuple):
    """The setting of a program that takes one block of up to `elements` elements.

    lean_warps, lean_registers: where numbers of 16 bits become codes. 16 warps of 32 registers a
        thread leave room for three other programs on a multiprocessor.
    """

    elements: int
    warps: int
    lean_warps: int
    lean_registers: int


LARGE = (  # blocks that are a part of a row
    Large(2048, 2, 2, 0), Large(4096, 8, 8, 32), Large(16384, 16, 16, 32), Large(32768, 32, 32, 32),
)  # fmt: skip
LARGE_ACROSS = (  # blocks of several rows
    Large(4096, 4, 4, 0), Large(8192, 4, 4, 0), Large(16384, 8, 16, 64), Large(32768, 16, 16, 0),
)  # fmt: skip
LARGEST = Large(0, 32, 32, 0)  # for blocks that are larger than all of them
# warps and registers for blocks of 4097 to 16384 elements where the compiler would take so many
# registers that one program has a multiprocessor to itself
HEAVY = {"signs": (16, 64), "means": (8, 128), "powers": (16, 64), "tall": (16, 64)}


def setting(
    at: BlockedMatrix, *, has_scale: bool, merged: bool, packed: bool = False, lean: bool = False,
    heavy: str = "",
) -> Setting:  # fmt: skip
    """What to launch with.

    has_scale: scales are given, so that units may be parts of blocks
    merged: what is found in units is merged by atomic operations
    packed: codes of less than a byte are written
    lean: numbers of 16 bits become codes
    heavy: one of HEAVY, or ""
    """
    if interpreting():
        return INTERPRETED
    if merged and (has_scale or at.bm * at.bk <= MERGED.elements):
        return MERGED
    block, across = at.bm * at.bk, at.bm > 1
    if not has_scale and block > ALONG.elements:
        if heavy and 4096 < block <= 16384:
            warps, registers = HEAVY[heavy]
            return Setting(block, warps, registers=registers)
        table = LARGE_ACROSS if across else LARGE
        row = next((each for each in table if block <= each.elements), LARGEST)
        if lean:
            return Setting(block, row.lean_warps, registers=row.lean_registers)
        return Setting(block, row.warps)
    if at.before is not None and at.k % 2:
        return ODD_BOXES
    if across and lean:
        return PACKED_LEAN_ACROSS if packed else LEAN_ACROSS
    if packed:
        return PACKED_ACROSS if across else PACKED_LEAN if lean else PACKED
    return ACROSS if across else ALONG


# How a primitive is launched: decided once for each format, shape, result and size of numbers.


class LaunchPlan(NamedTuple):
    """A launch without its tensors.

    options: named arguments of Triton's own, such as num_warps
    row: how many scales a row of them has, where each has an outer scale; else 1
    """

    spec: Spec
    tiling: Tiling
    options: dict[str, Any]
    row: int = 1


@lru_cache(4096)
def plan(
    spelling: str, shape: tuple[int, ...], result: str, has_scale: bool, seeds: int, size: int
) -> LaunchPlan | None:
    """How to compute a result, or None if blocks are too large to choose their scale in one pass.

    shape: of the tensor, none of whose sizes is 0
    result: as in Tile
    has_scale: scales are given, or not asked for
    seeds: how many numbers the seed has, 0 without one
    size: bytes of each number that is read, or written if `result` is "decode"
    """
    fmt = form(spelling)
    at = blocks_of(shape, fmt.format.block)
    choice = _setting(fmt, at, result, has_scale, size)
    layout = tiling(at, choice.elements, whole=not has_scale, unit=choice.unit)
    if layout is None:
        return None
    of_result = of_gradient(fmt.spec) if result == "gradient" else fmt.spec
    options: dict[str, Any] = {"num_warps": choice.warps, "enable_fp_fusion": False}
    if choice.registers:
        options["maxnreg"] = choice.registers
    tile = _complete(layout, at, fmt, shape, result, has_scale, seeds)
    row = fmt.scale_shape(shape)[-1] if fmt.row_outer else 1
    return LaunchPlan(of_result, replace(layout, tile=tile), options, row)


def _setting(fmt: Form, at: BlockedMatrix, result: str, has_scale: bool, size: int) -> Setting:
    """The measured setting for what a kernel does. The arguments are those of `plan`."""
    element = fmt.spec.element
    # rounding to powers of two takes more registers
    powers = element.family == "minifloat" and not element.mbits
    heavy = ""
    if powers and (size == 2 or result == "codes"):
        heavy = "powers"
    elif size == 2 and result == "values" and at.bm > 1:
        heavy = "tall"
    elif fmt.means:
        heavy = "signs" if element.family == "binary" and size == 4 else "means"
    return setting(
        at,
        has_scale=has_scale,
        merged=result in ("largest", "extremes"),
        packed=result == "codes" and fmt.bits <= 4,
        lean=size == 2 and result == "codes" and not (fmt.means or fmt.needs_seed or powers),
        heavy=heavy,
    )


def _complete(
    layout: Tiling, at: BlockedMatrix, fmt: Form, shape: tuple[int, ...], result: str,
    has_scale: bool, seeds: int,
) -> Tile:  # fmt: skip
    """The Tile with what it needs to know of the format and the result."""
    tile, uk = layout.tile, layout.extents.uk
    last = shape[-1] if shape else 1
    return replace(
        tile,
        packs=packs(at, tile, uk, fmt.bits, last),
        chooses=not has_scale,
        keeps=not has_scale and result in ("codes", "scale"),
        result=result,
        seeds=seeds,
        quads=seeds == 1 and groups(at, tile, uk, 4),
        pairs=result in ("codes", "values") and may_pair(at, fmt, tile, uk),
        narrowing=narrowing(fmt.spec) if result == "codes" else NO_NARROWING,
        outers=fmt.row_outer and not has_scale,
    )


def may_pair(at: BlockedMatrix, fmt: Form, tile: Tile, uk: int) -> bool:
    """Whether kernels may take neighbours of 16 bits in pairs, which for means share a unit."""
    shared = tile.kind != "column" or not fmt.means
    return fmt.bits <= 8 and shared and groups(at, tile, uk, 2)


def one_pass(f: Form, x: Tensor, result: str, seeds: int) -> LaunchPlan | None:
    """A plan that also chooses the scales of x, or None if one pass over it is not enough."""
    if f.inner is not None and not (f.one_outer or f.row_outer):
        return None
    return plan(f.format.spelling, tuple(x.shape), result, False, seeds, x.itemsize)


def with_scale(f: Form, x: Tensor, result: str, seeds: int) -> LaunchPlan:
    """A plan for x that reads given scales."""
    own = plan(f.format.spelling, tuple(x.shape), result, True, seeds, x.itemsize)
    assert own is not None
    return own
