"""The kernel that encodes. `spec` is a spec.Spec, `tile` a view.Tile: Triton compiles once for
each pair. `numbers` are the view's (view.py); `dtype` is that of what is read.
"""

import triton
import triton.language as tl

from blockscale.kernels.cuda.device.division import (
    bounded_steps,
    bounds,
    divisor,
    fits,
    in_steps,
    limits,
    minds_zero,
    ordinary,
    ordinary_steps,
    repairs,
    settles,
)
from blockscale.kernels.cuda.device.element import (
    converted_pair,
    encode,
    hardware,
    inside,
    round_trip,
    three_binades,
    three_lines,
)
from blockscale.kernels.cuda.device.lanes import (
    MAGNITUDES,
    apart,
    joins,
    narrowed,
    narrows,
    read,
    signed_nibbles,
    spread_pairs,
    together_as,
)
from blockscale.kernels.cuda.device.numerics import (
    EXPONENT,
    INTERPRETED,
    bits_of,
    float_of,
    narrow,
    widen,
)
from blockscale.kernels.cuda.device.powers import power_codes, power_values, powers, turns
from blockscale.kernels.cuda.device.random_numbers import draw
from blockscale.kernels.cuda.device.scale import (
    choose_step,
    load_scale,
    narrow_scale,
    ordinary_step,
    outer_scale,
    step_of,
    zero_point,
)
from blockscale.kernels.cuda.device.signs import (
    packed_sign_pairs,
    packed_signs,
    sign_pairs,
    sign_values,
    signs,
)
from blockscale.kernels.cuda.device.tile import (
    locate,
    offsets,
    pairs,
    spread,
    store_packed,
    together,
)
from blockscale.kernels.cuda.primitives.ranges import extremes, far_from_zero, ranges

NEIGHBOURS: tl.constexpr = tl.constexpr(8)  # of two bytes each, which one instruction moves


@triton.jit
def choose_scale(
    x, found, mask, units, settled: tl.constexpr, dtype: tl.constexpr, spec: tl.constexpr,
    tile: tl.constexpr,
):  # fmt: skip
    """Of each unit what is stored for it, and is written: as `load_scale`, and what to divide by.

    found: its extremes
    """
    index, present, scale, above, zero = units
    low, high = ranges(x, found, mask, settled, dtype, spec, tile)
    poisoned = found[2] >= EXPONENT
    if settled:
        poisoned = False
    stored = choose_step(low, high, poisoned, above, settled, spec)
    if settled:
        step = ordinary_step(stored, above, spec)
    else:
        step = step_of(stored, above, spec)
    offset = 0
    if spec.asym:
        offset = zero_point(low, step, spec)
    if tile.keeps:
        tl.store(scale + index, narrow_scale(stored, scale.dtype.element_ty), mask=present)
        if spec.asym:
            tl.store(zero + index, offset, mask=present)
    by = step
    if settled and repairs(spec):
        by = tl.where(found[2] == 0, 1.0, step)  # nothing but zeros, counted in any steps
    return stored, step, above, offset, by


@triton.jit
def encode_tile(
    x_at, out, gradient, scale, outer, zero, seed, outer_count, numbers,
    spec: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """Choose scales (tile.chooses) or read them, and write what tile.result says (view.py)."""
    dtype: tl.constexpr = x_at.dtype.element_ty
    paired: tl.constexpr = joins(dtype, tile)
    counted: tl.constexpr = tile.halved if paired else tile
    x, place, at, mask, index, present = read(x_at, numbers, tile)
    to = at, mask, out, gradient, seed, numbers
    if tile.chooses:
        above = 1.0
        if spec.scale == "two_level":
            above = outer_scale(float_of(tl.load(gradient)), spec)
            tl.store(outer, above, mask=tl.program_id(0) == 0)
        found = extremes(x, dtype, spec, counted)
        units = index, present, scale, above, zero
        if settles(dtype, spec, tile):
            calm = ordinary(found[2], above, spec)
            if repairs(spec) and minds_zero(spec) and not signs(True, spec, tile):
                calm = calm & far_from_zero(x, found[2], dtype, spec)
            if calm:
                encode_blocks(x, found, units, to, True, dtype, spec, tile)
            else:  # read again: registers for what is seldom needed would cost other programs
                again = tl.load(place, mask=mask, other=0)
                encode_blocks(again, found, units, to, False, dtype, spec, tile)
        else:
            encode_blocks(x, found, units, to, False, dtype, spec, tile)
    else:
        given = load_scale(scale, outer, zero, index, present, index % outer_count, spec)
        given = given[0], given[1], given[2], given[3], given[1]
        encode_with(x, given, to, False, dtype, spec, tile)


@triton.jit
def encode_blocks(
    x, found, units, to, settled: tl.constexpr, dtype: tl.constexpr, spec: tl.constexpr,
    tile: tl.constexpr,
):  # fmt: skip
    """Choose the scales of whole blocks from their extremes, and encode."""
    counted: tl.constexpr = tile.halved if joins(dtype, tile) else tile
    chosen = choose_scale(x, found, to[1], units, settled, dtype, spec, counted)
    encode_with(x, chosen, to, settled, dtype, spec, tile)


@triton.jit
def encode_with(
    x, chosen, to, settled: tl.constexpr, dtype: tl.constexpr, spec: tl.constexpr,
    tile: tl.constexpr,
):  # fmt: skip
    """What tile.result says of x, with the scale of each unit."""
    stored, step, above, offset, by = chosen
    at, mask, out, gradient, seed, numbers = to
    if signs(settled, spec, tile):
        write_signs(out, at, mask, numbers, x, step, dtype, spec, tile)
    elif tile.result != "scale":
        bounded: tl.constexpr = bounds(spec, tile.result)
        first, second, near = divisor(stored, by, above, bounded, settled, spec)
        if powers(settled, spec):
            element: tl.constexpr = spec.element
            first, second = turns(by, element)
        by = near
        parts = first, second, by, step, offset
        u, u_2 = 0.0, 0.0
        if spec.rounding == "stochastic" and tile.result != "gradient":
            u, u_2 = draw(x, at, seed, joins(dtype, tile), tile)
        if joins(dtype, tile):
            word = pairs_of(x, parts, u, u_2, settled, dtype, spec, tile)
            write_pairs(out, at, mask, numbers, word, spec, tile)
        else:
            parts = spread_parts(parts, spec, tile)
            if tile.result == "gradient":
                passed = tl.load(gradient + at, mask=mask, other=0.0)
                passed = tl.where(passes(widen(x), parts, spec), passed, 0.0)
                tl.store(out + at, passed, mask=mask)
            elif tile.result == "values":
                value = value_of(widen(x), parts, u, settled, spec)
                tl.store(out + at, narrow(value, out.dtype.element_ty), mask=mask)
            else:
                code = code_of(widen(x), parts, u, settled, spec)
                write_codes(out, at, mask, numbers, code, spec, tile)


@triton.jit
def write_signs(
    out, at, mask, numbers, x, step, dtype: tl.constexpr, spec: tl.constexpr, tile: tl.constexpr
):
    """Codes or values of elements that are compared (signs.py) -> memory."""
    kind: tl.constexpr = out.dtype.element_ty
    if joins(dtype, tile) and tile.result == "values":
        counted: tl.constexpr = tile.halved
        write_pairs(out, at, mask, numbers, sign_pairs(x, step, dtype, spec, counted), spec, tile)
    elif tile.result == "values":
        tl.store(out + at, narrow(sign_values(widen(x), step, spec, tile), kind), mask=mask)
    else:
        if joins(dtype, tile):
            word = packed_sign_pairs(x, step, dtype, spec, tile)
        else:
            word = packed_signs(widen(x), step, spec, tile)
        per: tl.constexpr = together(spec.element.bits)
        start, j, mask, _, _ = locate(tile, numbers, per)
        side: tl.constexpr = NEIGHBOURS if tile.kind == "row" else tile.side
        tl.store(out + offsets(start // per, j, side // per), word.to(kind), mask=mask)


@triton.jit
def spread_parts(parts, spec: tl.constexpr, tile: tl.constexpr):
    """What dividing takes, for each unit -> for elements."""
    first, second, by, step, offset = parts
    if spec.asym:
        offset = spread(offset, tile)
    return spread(first, tile), spread(second, tile), spread(by, tile), spread(step, tile), offset


@triton.jit
def pairs_of(
    x, parts, u, u_2, settled: tl.constexpr, dtype: tl.constexpr, spec: tl.constexpr,
    tile: tl.constexpr,
):  # fmt: skip
    """Pairs of elements -> of codes or values, the first in the low bits."""
    first, second, by, step, offset = parts
    element: tl.constexpr = spec.element
    counted: tl.constexpr = tile.halved
    first, first_2 = spread_pairs(first, counted)
    second, second_2 = spread_pairs(second, counted)
    if tile.result == "codes" and narrows(dtype, settled, spec) != "":
        word = narrowed(x, first, first_2, second, second_2, spec)
    else:
        by, by_2 = spread_pairs(by, counted)
        step, step_2 = spread_pairs(step, counted)
        offset_2 = offset
        if spec.asym:
            offset, offset_2 = spread_pairs(offset, counted)
        one, two = apart(x, dtype)
        parts, parts_2 = (
            (first, second, by, step, offset),
            (first_2, second_2, by_2, step_2, offset_2),
        )
        if tile.result == "values":
            one = value_of(one, parts, u, settled, spec)
            two = value_of(two, parts_2, u_2, settled, spec)
            word = together_as(one, two, dtype)
        elif hardware(spec.element, spec.rounding) is not None:
            one, _, _ = steps_of(one, parts, settled, "codes", spec)
            two, _, _ = steps_of(two, parts_2, settled, "codes", spec)
            word = converted_pair(one, two, element)
        elif nibbled(settled, spec, tile):
            word = nibbles_of(x, parts, parts_2, u, u_2, dtype, spec)
        else:
            one = code_of(one, parts, u, settled, spec)
            two = code_of(two, parts_2, u_2, settled, spec)
            bits: tl.constexpr = stored_bits(spec, tile)
            word = (one & ((1 << bits) - 1)) | (two << bits)
    return word


@triton.jit
def nibbles_of(x, parts, parts_2, u, u_2, dtype: tl.constexpr, spec: tl.constexpr):
    """Pairs of elements of ordinary blocks -> pairs of codes of four bits, bytes."""
    element: tl.constexpr = spec.element
    rounding: tl.constexpr = spec.rounding
    one, two = apart(x & MAGNITUDES, dtype)  # steps are positive
    one, _, _ = steps_of(one, parts, True, "codes", spec)
    two, _, _ = steps_of(two, parts_2, True, "codes", spec)
    one, two = three_lines(one, u, element, rounding), three_lines(two, u_2, element, rounding)
    return signed_nibbles(x, one, two)


@triton.constexpr_function
def nibbled(settled, spec, tile):
    """Whether signs are put to pairs of codes together."""
    short = spec.element.bits == 4 and three_binades(spec.element, spec.rounding)
    return short and settled and tile.packs and not INTERPRETED.value


@triton.constexpr_function
def stored_bits(spec, tile):
    """Of a code or value as this kernel writes it, in pairs."""
    if tile.result == "values":
        return 16
    return spec.element.bits if tile.packs else 8 if spec.element.bits <= 8 else 16


@triton.jit
def passes(x, parts, spec: tl.constexpr):
    """Whether a gradient does: bool. parts: of each element's block, as `encode_tile` has them."""
    first, second, by, _, offset = parts
    element: tl.constexpr = spec.element
    rounding: tl.constexpr = spec.rounding
    low, high = limits(offset, spec)
    return inside(in_steps(x, first, second, by, spec), low, high, element, rounding)


@triton.jit
def steps_of(x, parts, settled: tl.constexpr, result: tl.constexpr, spec: tl.constexpr):
    """Elements -> them in steps, of integers no NaN, and their limits."""
    first, second, by, _, offset = parts
    low, high = limits(offset, spec)
    if settled:
        y = ordinary_steps(x, first, second, by, spec)
    elif bounds(spec, result):
        y = bounded_steps(x, first, second, by, low, high)
    else:
        y = in_steps(x, first, second, by, spec)
    if spec.element.family == "integer" and not settled:
        y = tl.where(y == y, y, 0.0)
    return y, low, high


@triton.jit
def value_of(x, parts, u, settled: tl.constexpr, spec: tl.constexpr):
    """Elements -> what is left of them after a round trip, float32."""
    element: tl.constexpr = spec.element
    rounding: tl.constexpr = spec.rounding
    if powers(settled, spec):
        value = power_values(x, parts[0], parts[1], element)
    else:
        bounded: tl.constexpr = fits(spec) if settled else bounds(spec, "values")
        y, low, high = steps_of(x, parts, settled, "values", spec)
        source = bits_of(x) if settled else bits_of(y)
        asym: tl.constexpr = spec.asym
        value = round_trip(y, source, low, high, u, element, rounding, asym, settled, bounded)
    return value * parts[3]


@triton.jit
def code_of(x, parts, u, settled: tl.constexpr, spec: tl.constexpr):
    """Elements -> codes, int32."""
    element: tl.constexpr = spec.element
    rounding: tl.constexpr = spec.rounding
    asym: tl.constexpr = spec.asym
    if powers(settled, spec):
        code = power_codes(x, parts[0], parts[1], element)
    else:
        bounded: tl.constexpr = fits(spec) if settled else bounds(spec, "codes")
        y, low, high = steps_of(x, parts, settled, "codes", spec)
        source = bits_of(x) if settled or spec.scale == "e8m0" else bits_of(y)  # steps: positive
        code = encode(y, source, low, high, parts[4], u, element, rounding, asym, settled, bounded)
    return code


@triton.jit
def write_codes(out, at, mask, numbers, code, spec: tl.constexpr, tile: tl.constexpr):
    """Codes -> memory, packed if tile.packs. at: where elements lie"""
    if tile.packs:
        bits: tl.constexpr = spec.element.bits
        word = pairs(code, tile.rows, tile.columns, bits)
        start, j, mask, _, _ = locate(tile, numbers, together(bits))
        side: tl.constexpr = NEIGHBOURS if tile.kind == "row" else tile.side
        store_packed(out, start, j, mask, word, bits, side, tile)
    else:
        tl.store(out + at, code.to(out.dtype.element_ty), mask=mask)


@triton.jit
def write_pairs(out, at, mask, numbers, word, spec: tl.constexpr, tile: tl.constexpr):
    """Pairs of codes or values -> memory. at: where pairs lie"""
    bits: tl.constexpr = stored_bits(spec, tile)
    if bits == 4:
        tl.store(out + at, word.to(tl.uint8), mask=mask)
    elif bits == 8:
        tl.store(out.to(tl.pointer_type(tl.int16), bitcast=True) + at, word.to(tl.int16), mask=mask)
    elif bits == 16:
        tl.store(out.to(tl.pointer_type(tl.int32), bitcast=True) + at, word, mask=mask)
    else:
        start, j, mask, _, _ = locate(tile, numbers, together(bits))
        side: tl.constexpr = NEIGHBOURS if tile.kind == "row" else tile.side
        store_packed(out, start, j, mask, word, bits, side, tile)
