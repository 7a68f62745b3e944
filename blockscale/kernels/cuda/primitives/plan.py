# SPDX-License-Identifier: BSD-3-Clause
"""How a primitive is launched: decided once for each format, shape, result and size of numbers."""

from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from torch import Tensor

from blockscale.kernels.cuda.device.lanes_asm import NO_NARROWING, narrowing
from blockscale.kernels.cuda.primitives import settings
from blockscale.kernels.cuda.primitives.form import Form, form
from blockscale.kernels.cuda.primitives.tiling import (
    Blocks,
    Tile,
    Tiling,
    blocks_of,
    groups,
    packs,
    tiling,
)
from blockscale.kernels.cuda.spec import Spec, of_gradient


class Plan(NamedTuple):
    """A launch without its tensors. options: named arguments of Triton's own, such as num_warps"""

    spec: Spec
    tiling: Tiling
    options: dict[str, Any]


@lru_cache(4096)
def plan(
    spelling: str, shape: tuple[int, ...], result: str, given: bool, seeds: int, size: int
) -> Plan | None:
    """How to compute a result, or None if blocks are too large to choose their scale in one pass.

    shape: of the tensor, none of whose sizes is 0
    result: as in Tile
    given: scales are given, or not asked for
    seeds: how many numbers the seed has, 0 without one
    size: bytes of each number that is read, or written if `result` is "decode"
    """
    fmt = form(spelling)
    at = blocks_of(shape, fmt.format.block)
    chosen = _setting(fmt, at, result, given, size)
    laid = tiling(at, chosen.elements, whole=not given, unit=chosen.unit)
    if laid is None:
        return None
    of_result = of_gradient(fmt.spec) if result == "gradient" else fmt.spec
    options: dict[str, Any] = {"num_warps": chosen.warps, "enable_fp_fusion": False}
    if chosen.registers:
        options["maxnreg"] = chosen.registers
    tile = _completed(laid, at, fmt, shape, result, given, seeds)
    return Plan(of_result, replace(laid, tile=tile), options)


def _setting(fmt: Form, at: Blocks, result: str, given: bool, size: int) -> settings.Setting:
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
    return settings.setting(
        at,
        given=given,
        merged=result in ("largest", "extremes"),
        packed=result == "codes" and fmt.bits <= 4,
        lean=size == 2 and result == "codes" and not (fmt.means or fmt.drawn or powers),
        heavy=heavy,
    )


def _completed(
    laid: Tiling, at: Blocks, fmt: Form, shape: tuple[int, ...], result: str, given: bool,
    seeds: int,
) -> Tile:  # fmt: skip
    """The Tile with what it needs to know of the format and the result."""
    tile, uk = laid.tile, laid.extents.uk
    last = shape[-1] if shape else 1
    return replace(
        tile,
        packs=packs(at, tile, uk, fmt.bits, last),
        chooses=not given,
        keeps=not given and result in ("codes", "scale"),
        result=result,
        seeds=seeds,
        quads=seeds == 1 and groups(at, tile, uk, 4),
        pairs=result in ("codes", "values") and paired(at, fmt, tile, uk),
        narrowing=narrowing(fmt.spec) if result == "codes" else NO_NARROWING,
    )


def paired(at: Blocks, fmt: Form, tile: Tile, uk: int) -> bool:
    """Whether kernels may take neighbours of 16 bits in pairs, which for means share a unit."""
    shared = tile.kind != "column" or not fmt.means
    return fmt.bits <= 8 and shared and groups(at, tile, uk, 2)


def one_pass(f: Form, x: Tensor, result: str, seeds: int) -> Plan | None:
    """A plan that also chooses the scales of x, or None if one pass over it is not enough."""
    if f.inner is not None and not f.one_outer:
        return None
    return plan(f.format.spelling, tuple(x.shape), result, False, seeds, x.itemsize)


def with_scale(f: Form, x: Tensor, result: str, seeds: int) -> Plan:
    """A plan for x that reads given scales."""
    planned = plan(f.format.spelling, tuple(x.shape), result, True, seeds, x.itemsize)
    assert planned is not None
    return planned
