# SPDX-License-Identifier: BSD-3-Clause
"""Codes and values of a tile -> memory.

out: a pointer to uint8, int8 or int16 codes, or to values; Triton bitcasts it where it stores wider
words. A `tile` is not in pairs here, whatever it reads.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from blockscale.kernels.cuda.device.codes import (
    code_of,
    codes_of_pairs,
    counts_binades,
    passes,
    spread_scaling,
    stored_bits,
    turning_points,
    value_of,
)
from blockscale.kernels.cuda.device.division import (
    Scaling,
    all_ordinary,
    clamps_first,
    divisor,
    has_ordinary_branch,
    tells_quotients_from_zero,
    uses_markstein,
)
from blockscale.kernels.cuda.device.lanes import read, takes_pairs
from blockscale.kernels.cuda.device.numerics import EXPONENT, float_of, narrow, widen
from blockscale.kernels.cuda.device.random_numbers import draw
from blockscale.kernels.cuda.device.scale import (
    UnitScale,
    block_offset,
    choose_step,
    load_scale,
    narrow_scale,
    ordinary_step,
    outer_scale,
    step_of,
    zero_point,
)
from blockscale.kernels.cuda.device.signs import (
    compares,
    packed_sign_pairs,
    packed_signs,
    sign_pairs,
    sign_values,
)
from blockscale.kernels.cuda.device.tile import (
    codes_per_group,
    join_neighbours,
    locate,
    offsets,
    store_packed,
)
from blockscale.kernels.cuda.primitives.extremes import all_wide, extremes, far_from_zero
from blockscale.kernels.cuda.primitives.ranges import ranges

NEIGHBOURS: tl.constexpr = tl.constexpr(8)  # of two bytes each, which one instruction moves


@triton.jit
def write_codes(target, code, spec: tl.constexpr, tile: tl.constexpr):
    """Codes int32 [rows, columns] -> memory, packed if tile.packs. target: a ResultPlace"""
    if tile.packs:
        bits: tl.constexpr = spec.element.bits
        word = join_neighbours(code, tile.rows, tile.columns, bits)
        place = locate(tile, target.extents, codes_per_group(bits))
        side: tl.constexpr = NEIGHBOURS if tile.kind == "row" else tile.side
        store_packed(target.out, place, word, bits, side, tile)
    else:
        out = target.out
        tl.store(out + target.at, code.to(out.dtype.element_ty), mask=target.mask)


@triton.jit
def write_pairs(target, word, spec: tl.constexpr, tile: tl.constexpr):
    """Pairs of codes or values, as codes.codes_of_pairs makes them -> memory.

    target: a ResultPlace, whose `at` counts pairs
    """
    out, at, mask = target.out, target.at, target.mask
    bits: tl.constexpr = stored_bits(spec, tile)
    if bits == 4:
        tl.store(out + at, word.to(tl.uint8), mask=mask)
    elif bits == 8:
        tl.store(out.to(tl.pointer_type(tl.int16), bitcast=True) + at, word.to(tl.int16), mask=mask)
    elif bits == 16:
        tl.store(out.to(tl.pointer_type(tl.int32), bitcast=True) + at, word, mask=mask)
    else:
        place = locate(tile, target.extents, codes_per_group(bits))
        side: tl.constexpr = NEIGHBOURS if tile.kind == "row" else tile.side
        store_packed(out, place, word, bits, side, tile)


@triton.jit
def write_signs(target, x, step, dtype: tl.constexpr, spec: tl.constexpr, tile: tl.constexpr):
    """Elements or pairs that are compared (signs.py) -> their codes or values in memory.

    target: a ResultPlace; step: float32 [units]; dtype: of the elements
    """
    out = target.out
    kind: tl.constexpr = out.dtype.element_ty
    if takes_pairs(dtype, tile) and tile.result == "values":
        as_read: tl.constexpr = tile.in_pairs
        write_pairs(target, sign_pairs(x, step, dtype, spec, as_read), spec, tile)
    elif tile.result == "values":
        at = out + target.at
        tl.store(at, narrow(sign_values(widen(x), step, spec, tile), kind), mask=target.mask)
    else:
        if takes_pairs(dtype, tile):
            word = packed_sign_pairs(x, step, dtype, spec, tile)
        else:
            word = packed_signs(widen(x), step, spec, tile)
        per: tl.constexpr = codes_per_group(spec.element.bits)
        place = locate(tile, target.extents, per)
        side: tl.constexpr = NEIGHBOURS if tile.kind == "row" else tile.side
        at = offsets(place.start // per, place.j, side // per)
        tl.store(out + at, word.to(kind), mask=place.mask)


@triton.jit
def scaling_by(scale, ordinary: tl.constexpr, result: tl.constexpr, spec: tl.constexpr):
    """A scale.UnitScale -> the Scaling that elements are counted in; result: as in Tile."""
    clamps: tl.constexpr = clamps_first(spec, result)
    scaling = divisor(scale, clamps, ordinary, spec)
    if counts_binades(ordinary, spec):
        element: tl.constexpr = spec.element
        first, second = turning_points(scale.divisor, element)
        scaling = Scaling(first, second, scaling.by, scaling.step, scaling.zero, scaling.offset)
    return scaling


# The kernel that encodes: it chooses scales or reads them, and writes codes, values or gradients.
#
# Triton compiles it once for each pair of a spec.Spec and a tiling.Tile. `dtype` is that of what it
# reads. Words and shapes are explained in blockscale/kernels/cuda/device/__init__.py.

ONE: tl.constexpr = tl.constexpr(0x3F800000)  # the bits of 1.0


class ResultPlace(NamedTuple):
    """Where results go, beside what they are made with.

    at: int64 [rows, columns], the index of each element; of each pair where a program takes pairs
    mask: bool, which of them exist
    out: a pointer to codes or values, or None for "scale" alone
    gradient: a pointer to the gradient, where tile.result is "gradient"
    seed: a pointer to the seed, where rounding is stochastic
    extents: a tiling.Extents
    """

    at: Any
    mask: Any
    out: Any
    gradient: Any
    seed: Any
    extents: Any


class Units(NamedTuple):
    """Where chosen scales go: [units] of one tile.

    index: int64, where in memory; present: bool, which units exist
    scale, zero, offset: pointers to scales, zero points and offsets, the latter two None where the
        format has none
    outer: float32, the outer scale, or those of the units where tile.outers, or 1.0 where the
        format has none
    """

    index: Any
    present: Any
    scale: Any
    zero: Any
    offset: Any
    outer: Any


@triton.jit
def encode_tile(
    x_at, out, extra, scale, outer, zero, offset, seed, every, extents,
    spec: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """Choose scales (tile.chooses) or read them, and write what tile.result says.

    x_at: float32, bfloat16 or float16 [batch, m, k], contiguous
    out: uint8, int8 or int16, packed codes or one a byte; or the dtype of x, values or gradients
    extra: the gradient, of x's shape; or int32 [outer scales], the bits of the largest numerators,
           from which the outer scales are chosen; else None
    scale: the stored scales of all blocks
    outer: float32, an outer scale for each block, or one for all, or, where they are chosen, for
           each row of scales; None with one level
    zero: int32 or floats, the zero points of all blocks; None where the format has none
    offset: float32, bfloat16 or float16, the offsets of all blocks; None where the format has none
    seed: int64 [1] or [2], of stochastic rounding; else None
    every: how many outer scales there are or, where tile.outers, how many scales share one
    extents: a tiling.Extents
    """
    dtype: tl.constexpr = x_at.dtype.element_ty
    data = read(x_at, extents, tile)
    target = ResultPlace(data.at, data.mask, out, extra, seed, extents)
    if tile.chooses:
        above = 1.0
        if spec.scale == "two_level":
            above = choose_outer(extra, outer, every, data, spec, tile)
        units = Units(data.index, data.present, scale, zero, offset, above)
        encode_choosing(data, units, target, dtype, spec, tile)
    else:
        unit = load_scale(
            scale, outer, zero, offset, data.index, data.present, data.index % every, spec
        )
        encode_with(data.x, unit, target, False, dtype, spec, tile)


@triton.jit
def choose_outer(tops, outer, every, data, spec: tl.constexpr, tile: tl.constexpr):
    """The outer scales of a lanes.Read's units, or the one of all; they are written, too.

    tops: int32, the bits of the largest numerators; outer, every: as `encode_tile` takes them
    """
    if tile.outers:
        which = data.index // every
        top = tl.load(tops + which, mask=data.present, other=ONE)
        above = outer_scale(float_of(top), spec)
        tl.store(outer + which, above, mask=data.present)  # each of its units has the same
    else:
        above = outer_scale(float_of(tl.load(tops)), spec)
        tl.store(outer, above, mask=tl.program_id(0) == 0)
    return above


@triton.jit
def lowest(outer, tile: tl.constexpr):
    """The lowest outer scale of a program's units."""
    if tile.outers:
        result = tl.min(outer)
    else:
        result = outer
    return result


@triton.jit
def encode_choosing(
    data, units, target, dtype: tl.constexpr, spec: tl.constexpr, tile: tl.constexpr
):
    """Choose the scales of a lanes.Read, in a branch of its own where all blocks are ordinary."""
    as_read: tl.constexpr = tile.in_pairs if takes_pairs(dtype, tile) else tile
    peaks = extremes(data.x, data.mask, dtype, spec, as_read)
    if has_ordinary_branch(dtype, spec, tile):
        if spec.offset != "" and uses_markstein(spec):
            ordinary = all_wide(peaks, spec)
        else:
            ordinary = all_ordinary(peaks.top, lowest(units.outer, tile), spec)
            if tile.outers:
                ordinary = ordinary & all_ordinary(peaks.top, tl.max(units.outer), spec)
        if (
            uses_markstein(spec)
            and tells_quotients_from_zero(spec)
            and not compares(True, spec, tile)
        ):
            ordinary = ordinary & far_from_zero(data.x, peaks.top, dtype, spec)
        if ordinary:
            encode_blocks(data.x, peaks, units, target, True, dtype, spec, tile)
        else:  # read again: registers for what is seldom needed would cost other programs
            again = tl.load(data.source, mask=data.mask, other=0)
            encode_blocks(again, peaks, units, target, False, dtype, spec, tile)
    else:
        encode_blocks(data.x, peaks, units, target, False, dtype, spec, tile)


@triton.jit
def encode_blocks(
    x, peaks, units, target, ordinary: tl.constexpr, dtype: tl.constexpr, spec: tl.constexpr,
    tile: tl.constexpr,
):  # fmt: skip
    """Choose the scales of whole blocks from their Extremes, and encode."""
    as_read: tl.constexpr = tile.in_pairs if takes_pairs(dtype, tile) else tile
    choice = choose_scale(x, peaks, target.mask, units, ordinary, dtype, spec, as_read)
    encode_with(x, choice, target, ordinary, dtype, spec, tile)


@triton.jit
def choose_scale(
    x, peaks, mask, units, ordinary: tl.constexpr, dtype: tl.constexpr, spec: tl.constexpr,
    tile: tl.constexpr,
):  # fmt: skip
    """Blocks' Extremes -> their scale.UnitScale, which is written if tile.keeps.

    x, mask: of a lanes.Read; tile: counts as x does
    """
    low, high = ranges(x, peaks, mask, ordinary, dtype, spec, tile)
    has_nan = peaks.top >= EXPONENT
    if ordinary:
        has_nan = False
    stored = choose_step(low, high, has_nan, units.outer, ordinary, spec)
    if ordinary:
        step = ordinary_step(stored, units.outer, spec)
    else:
        step = step_of(stored, units.outer, spec)
    zero = 0
    if spec.asym:
        zero = zero_point(low, step, spec)
    offset = 0.0
    if spec.offset != "":
        offset = block_offset(low, step, spec)
    if tile.keeps:
        at = units.scale + units.index
        tl.store(at, narrow_scale(stored, units.scale.dtype.element_ty), mask=units.present)
        if spec.asym:
            at = units.zero + units.index
            tl.store(at, narrow(zero, units.zero.dtype.element_ty), mask=units.present)
        if spec.offset != "":
            at = units.offset + units.index
            tl.store(at, narrow(offset, units.offset.dtype.element_ty), mask=units.present)
    by = step
    if ordinary and uses_markstein(spec) and spec.offset == "":
        by = tl.where(peaks.top == 0, 1.0, step)  # nothing but zeros, counted in any steps
    return UnitScale(stored, step, units.outer, zero, offset, by)


@triton.jit
def encode_with(
    x, scale, target, ordinary: tl.constexpr, dtype: tl.constexpr, spec: tl.constexpr,
    tile: tl.constexpr,
):  # fmt: skip
    """Write what tile.result says of x, with the scale of each unit."""
    out, at, mask = target.out, target.at, target.mask
    if compares(ordinary, spec, tile):
        write_signs(target, x, scale.step, dtype, spec, tile)
    elif tile.result != "scale":
        result: tl.constexpr = tile.result
        scaling = scaling_by(scale, ordinary, result, spec)
        u, u_2 = 0.0, 0.0
        if spec.rounding == "stochastic" and tile.result != "gradient":
            u, u_2 = draw(x, at, target.seed, takes_pairs(dtype, tile), tile)
        if takes_pairs(dtype, tile):
            word = codes_of_pairs(x, scaling, u, u_2, ordinary, dtype, spec, tile)
            write_pairs(target, word, spec, tile)
        else:
            scaling = spread_scaling(scaling, spec, tile)
            if tile.result == "gradient":
                upstream = tl.load(target.gradient + at, mask=mask, other=0.0)
                upstream = tl.where(passes(widen(x), scaling, spec), upstream, 0.0)
                tl.store(out + at, upstream, mask=mask)
            elif tile.result == "values":
                value = value_of(widen(x), scaling, u, ordinary, spec)
                tl.store(out + at, narrow(value, out.dtype.element_ty), mask=mask)
            else:
                tl.static_assert(tile.result == "codes", "unknown result")
                code = code_of(widen(x), scaling, u, ordinary, spec)
                write_codes(target, code, spec, tile)


# What a round trip loses of each block, where two scales are compared (docs/numerics.md, 3.5).


@triton.jit
def errors_tile(
    x_at, errors, scale, outer, zero, offset, every, extents, spec: tl.constexpr,
    tile: tl.constexpr,
):  # fmt: skip
    """The sums of squared errors of blocks that are rows of the tile, as core.reference adds up.

    errors: float64, one of each block; the others as `encode_tile` takes them
    """
    data = read(x_at, extents, tile)
    unit = load_scale(
        scale, outer, zero, offset, data.index, data.present, data.index % every, spec
    )
    x = widen(data.x)
    result: tl.constexpr = tile.result
    scaling = spread_scaling(scaling_by(unit, False, result, spec), spec, tile)
    error = value_of(x, scaling, 0.0, False, spec).to(tl.float64) - x.to(tl.float64)
    total = tl.where(data.mask, error * error, 0.0)
    for i in tl.static_range(tile.columns.bit_length() - 1):
        total = tl.sum(tl.reshape(total, [tile.rows, 2, tile.columns >> (i + 1)]), 1)
    tl.store(errors + data.index, tl.reshape(total, [tile.rows]), mask=data.present)
