"""The kernels. `spec` is a spec.Spec, `tile` a view.Tile: Triton compiles once for each pair.

`numbers` are the view's (view.py).
"""

import triton
import triton.language as tl

from blockscale.kernels.cuda.element import decode, encode, inside, magnitude, round_trip
from blockscale.kernels.cuda.numerics import (
    EXPONENT,
    bits_of,
    float_of,
    narrow,
    pow2,
    random_words,
    unit,
    widen,
)
from blockscale.kernels.cuda.scale import (
    bounded_steps,
    bounds,
    choose_step,
    divisor,
    finite_bits,
    from_finite_bits,
    in_steps,
    integer_limits,
    numerator,
    outer_scale,
    step_of,
    zero_point,
)
from blockscale.kernels.cuda.tile import (
    largest,
    load_packed,
    load_ragged,
    locate,
    offsets,
    spread,
    store_packed,
    together,
    total,
)

NEIGHBOURS: tl.constexpr = tl.constexpr(8)  # of two bytes each, which one instruction moves
SIGN: tl.constexpr = tl.constexpr(-0x80000000)


@triton.jit
def extremes(x, spec: tl.constexpr, tile: tl.constexpr):
    """A tile -> of each unit the largest and the largest negated `finite_bits`, and the largest
    magnitude's bits, at least infinity's if something in it is not finite; 0 where not needed."""
    bits = bits_of(x)
    high = largest(magnitude(bits), tile)
    low = high
    top = high
    if spec.statistic == "range" or spec.statistic == "high":
        high = largest(finite_bits(bits), tile)
        low = high
        if spec.statistic == "range":
            low = largest(finite_bits(bits ^ SIGN), tile)
    elif spec.poisons:
        high = top + 0x00800000
        low = high
    else:
        high = largest(finite_bits(magnitude(bits)), tile)
        low = high
    return high, low, top


@triton.jit
def means(x, mask, spec: tl.constexpr, tile: tl.constexpr):
    """A tile -> the mean magnitude of each unit, whose sum is one of integers (3.2)."""
    size = tl.abs(x)
    chosen = mask & (magnitude(bits_of(x)) < EXPONENT)
    size = tl.where(chosen, size, 0.0)
    power = tl.maximum(bits_of(largest(size, tile)) >> 23, 1) - 127
    shift = 30 - power
    half = shift >> 1  # two factors: 2^156 is not a float32
    first, second = spread(pow2(half), tile), spread(pow2(shift - half), tile)
    whole = (size * first * second).to(tl.int32)
    mean = mean_of(whole, chosen, power, tile)
    if spec.statistic == "mean_above":
        chosen = chosen & (size > spread(mean * 0.699999988079071044921875, tile))
        mean = mean_of(whole, chosen, power, tile)
    return mean


@triton.jit
def mean_of(whole, chosen, power, tile: tl.constexpr):
    """The mean of the chosen integers of each unit, times 2^(power - 30)."""
    sums = total(tl.where(chosen, whole, 0).to(tl.int64), tile).to(tl.float32)
    count = tl.maximum(total(chosen.to(tl.int32), tile), 1).to(tl.float32)
    return tl.div_rn(sums, count) * 9.313225746154785e-10 * pow2(power)


@triton.jit
def ranges(x, mask, spec: tl.constexpr, tile: tl.constexpr):
    """A tile -> (low, high, poisoned) of each unit, which is a whole block."""
    if spec.statistic == "mean" or spec.statistic == "mean_above":
        high = means(x, mask, spec, tile)
        low = 0.0 - high
        poisoned = high < 0.0
        if spec.poisons:
            poisoned = largest(magnitude(bits_of(x)), tile) >= EXPONENT
    else:
        up, down, top = extremes(x, spec, tile)
        high = from_finite_bits(up)
        low = 0.0 - from_finite_bits(down)
        poisoned = top >= EXPONENT
    return low, high, poisoned


@triton.jit
def draw(numbers, seed, tile: tl.constexpr):
    """One number in [0, 1) for each element (section 2). tile.seeds: 1 if there is no offset."""
    key = tl.load(seed)
    if tile.seeds == 1 and tile.quads:  # four neighbours share a counter
        start, j, _, _, _ = locate(tile, numbers, 4)
        group = (start // 4)[:, None] + j[None, :]
        a, b, c, d = random_words(group, key)
        ac = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [tile.rows, tile.columns])
        u = unit(ac)
    else:
        start, j, _, _, _ = locate(tile, numbers, 1)
        index = start[:, None] + j[None, :]
        if tile.seeds == 2:
            index += tl.load(seed + 1)
        a, b, c, d = random_words(index >> 2, key)
        at = (index & 3).to(tl.int32)
        u = unit(tl.where(at < 2, tl.where(at == 0, a, b), tl.where(at == 2, c, d)))
    return u


@triton.jit
def load_scale(scale, outer, zero, index, present, outer_index, spec: tl.constexpr):
    """What is stored for each unit: (stored, step, outer scale, zero point)."""
    stored = tl.load(scale + index, mask=present, other=1)
    if spec.scale == "e8m0" or spec.scale == "two_level":
        stored = stored.to(tl.int32)
    else:
        stored = widen(stored)
    above = 1.0
    if spec.scale == "two_level":
        above = tl.load(outer + outer_index, mask=present, other=1.0)
    offset = 0
    if spec.asym:
        offset = tl.load(zero + index, mask=present, other=0)
    return stored, step_of(stored, above, spec), above, offset


@triton.jit
def choose_scale(
    x, mask, scale, outer, zero, work, index, present, spec: tl.constexpr, tile: tl.constexpr
):
    """Of each unit what is stored for it, and is written: as `load_scale`, and `keep` of encode."""
    low, high, poisoned = ranges(x, mask, spec, tile)
    above = 1.0
    if spec.scale == "two_level":
        above = outer_scale(float_of(tl.load(work)), spec)
        tl.store(outer, above, mask=tl.program_id(0) == 0)
    stored = choose_step(low, high, poisoned, above, spec)
    step = step_of(stored, above, spec)
    offset = 0
    if spec.asym:
        offset = zero_point(low, step, spec)
    if tile.keeps:
        tl.store(scale + index, narrow_scale(stored, scale.dtype.element_ty), mask=present)
        if spec.asym:
            tl.store(zero + index, offset, mask=present)
    return stored, step, above, offset, tl.where(poisoned, 0, -1)


@triton.jit
def encode_tile(
    x_at, out, gradient, scale, outer, zero, seed, outer_count, numbers,
    spec: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """Choose scales (tile.chooses) or read them, and write what tile.result says (view.py)."""
    start, j, mask, index, present = locate(tile, numbers, 1)
    at = offsets(start, j, tile.side)
    x = widen(tl.load(x_at + at, mask=mask, other=0.0))
    keep = -1
    if tile.chooses:
        stored, step, above, offset, keep = choose_scale(
            x, mask, scale, outer, zero, gradient, index, present, spec, tile
        )
    else:
        stored, step, above, offset = load_scale(
            scale, outer, zero, index, present, index % outer_count, spec
        )
    if tile.result != "scale":
        bounded: tl.constexpr = bounds(spec, tile.result)
        first, second, by = divisor(stored, step, above, bounded, spec)
        first, second, by = spread(first, tile), spread(second, tile), spread(by, tile)
        if spec.asym:
            offset = spread(offset, tile)
        if tile.chooses:
            keep = spread(keep, tile)
        parts = first, second, by, spread(step, tile), offset, keep
        if tile.result == "gradient":
            passed = tl.load(gradient + at, mask=mask, other=0.0)
            passed = tl.where(passes(x, parts, spec), passed, 0.0)
            tl.store(out + at, passed, mask=mask)
        else:
            u = 0.0
            if spec.rounding == "stochastic":
                u = draw(numbers, seed, tile)
            if tile.result == "values":
                value = value_of(x, parts, u, tile.chooses and spec.poisons, spec)
                tl.store(out + at, narrow(value, out.dtype.element_ty), mask=mask)
            else:
                code = code_of(x, parts, u, tile.chooses and spec.poisons, spec)
                write_codes(out, numbers, code, spec, tile)


@triton.jit
def passes(x, parts, spec: tl.constexpr):
    """Whether a gradient does: bool. parts: of each element's block, as `encode_tile` has them."""
    first, second, by, _, offset, _ = parts
    element: tl.constexpr = spec.element
    rounding: tl.constexpr = spec.rounding
    low, high = integer_limits(offset, spec)
    return inside(in_steps(x, first, second, by, spec), low, high, element, rounding)


@triton.jit
def value_of(x, parts, u, clean: tl.constexpr, spec: tl.constexpr):
    """Elements -> what is left of them after a round trip, float32."""
    first, second, by, step, offset, _ = parts
    element: tl.constexpr = spec.element
    rounding: tl.constexpr = spec.rounding
    bounded: tl.constexpr = bounds(spec, "values")
    low, high = integer_limits(offset, spec)
    if bounded:
        y = bounded_steps(x, first, second, by, low, high)
    else:
        y = in_steps(x, first, second, by, spec)
    if spec.element.family == "integer" and not clean:
        y = tl.where(y == y, y, 0.0)
    return round_trip(y, bits_of(y), low, high, u, element, rounding, clean, bounded) * step


@triton.jit
def code_of(x, parts, u, clean: tl.constexpr, spec: tl.constexpr):
    """Elements -> codes, int32."""
    first, second, by, _, offset, keep = parts
    element: tl.constexpr = spec.element
    rounding: tl.constexpr = spec.rounding
    asym: tl.constexpr = spec.asym
    family: tl.constexpr = spec.element.family
    bounded: tl.constexpr = bounds(spec, "codes")
    low, high = integer_limits(offset, spec)
    if bounded:
        y = bounded_steps(x, first, second, by, low, high)
    else:
        y = in_steps(x, first, second, by, spec)
    if family == "integer" and not clean:
        y = tl.where(y == y, y, 0.0)
    if spec.scale == "e8m0":  # steps are positive
        source = bits_of(x)
    else:
        source = bits_of(y)
    return encode(y, source, low, high, offset, keep, u, element, rounding, asym, clean, bounded)


@triton.jit
def write_codes(out, numbers, code, spec: tl.constexpr, tile: tl.constexpr):
    """Codes -> memory, packed if tile.packs."""
    bits: tl.constexpr = spec.element.bits
    if tile.packs:
        start, j, mask, _, _ = locate(tile, numbers, together(bits))
        side: tl.constexpr = NEIGHBOURS if tile.kind == "row" else tile.side
        store_packed(out, start, j, mask, code, bits, side, tile)
    else:
        start, j, mask, _, _ = locate(tile, numbers, 1)
        at = offsets(start, j, tile.side)
        tl.store(out + at, code.to(out.dtype.element_ty), mask=mask)


@triton.jit
def narrow_scale(stored, dtype: tl.constexpr):
    """A scale as `choose_step` has it -> as it is stored; it is of that dtype's values."""
    if dtype != tl.uint8:
        stored = narrow(stored, dtype)
    return stored.to(dtype)


@triton.jit
def largest_numerator(
    x_at, work, numbers,
    spec: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """The largest numerator of blocks that are not poisoned -> work int32 [1], its bits."""
    start, j, mask, _, present = locate(tile, numbers, 1)
    x = widen(tl.load(x_at + start[:, None] + j[None, :], mask=mask, other=0.0))
    low, high, poisoned = ranges(x, mask, spec, tile)
    if spec.poisons:
        present = present & (poisoned == 0)
    a = tl.where(present, numerator(low, high, spec), 0.0)
    tl.atomic_max(work, tl.max(bits_of(a)), sem="relaxed")


@triton.jit
def merge_extremes(
    x_at, work, count, numbers,
    spec: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """Extremes of parts of blocks, merged in work int32 [3, count], which starts as zeros.

    Its rows: the bits of the largest number, of the smallest negated, of the largest magnitude.
    """
    start, j, mask, index, present = locate(tile, numbers, 1)
    x = widen(tl.load(x_at + start[:, None] + j[None, :], mask=mask, other=0.0))
    high, low, top = extremes(x, spec, tile)
    at = work + index
    tl.atomic_max(at, bits_of(from_finite_bits(high)), mask=present, sem="relaxed")
    if spec.statistic == "range":
        tl.atomic_max(at + count, bits_of(from_finite_bits(low)), mask=present, sem="relaxed")
    if spec.poisons:
        tl.atomic_max(at + 2 * count, top, mask=present, sem="relaxed")


@triton.jit
def finish(work, scale, zero, count, spec: tl.constexpr, columns: tl.constexpr):
    """What `merge_extremes` left -> stored scales and zero points."""
    index = tl.program_id(0).to(tl.int64) * columns + tl.arange(0, columns)
    present = index < count
    high = float_of(tl.load(work + index, mask=present, other=0))
    low = 0.0 - float_of(tl.load(work + count + index, mask=present, other=0))
    poisoned = high < 0.0
    if spec.poisons:
        poisoned = tl.load(work + 2 * count + index, mask=present, other=0) >= EXPONENT
    stored = choose_step(low, high, poisoned, 1.0, spec)
    tl.store(scale + index, narrow_scale(stored, scale.dtype.element_ty), mask=present)
    if spec.asym:
        offset = zero_point(low, step_of(stored, 1.0, spec), spec)
        tl.store(zero + index, offset, mask=present)


@triton.jit
def decode_tile(
    packed, out, scale, outer, zero, outer_count, size,
    numbers,
    spec: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """Packed codes in rows of `size` -> values."""
    start, j, mask, index, present = locate(tile, numbers, 1)
    element: tl.constexpr = spec.element
    bits: tl.constexpr = element.bits
    at = start[:, None] + j[None, :]
    if bits == 8 or bits == 16:
        code = tl.load(packed + at, mask=mask, other=0).to(tl.int32)
    elif tile.packs:
        begin, place, kept, _, _ = locate(tile, numbers, together(bits))
        code = load_packed(packed, begin, place, kept, bits, tile)
    else:
        code = load_ragged(packed, start, j, mask, bits, size)
    _, step, _, offset = load_scale(scale, outer, zero, index, present, index % outer_count, spec)
    value = decode(code, element)
    if spec.asym:
        value = value - spread(offset, tile).to(tl.float32)
    value = value * spread(step, tile)
    tl.store(out + at, narrow(value, out.dtype.element_ty), mask=mask)


@triton.jit
def pack_row(codes, packed, count, size, bits: tl.constexpr, columns: tl.constexpr):
    """One code an entry in rows of `size` -> bit streams; `count` bytes in all (section 6)."""
    byte = tl.program_id(0).to(tl.int64) * columns + tl.arange(0, columns)
    width = (size * bits + 7) // 8
    row, at = byte // width, byte % width
    first = at * 8 // bits
    word = tl.zeros([columns], tl.int32)
    for i in tl.static_range((2 * bits + 6) // bits):  # as many codes as may reach into a byte
        column = first + i
        shift = (column * bits - at * 8).to(tl.int32)
        there = (byte < count) & (column < size) & (shift < 8)
        code = tl.load(codes + row * size + column, mask=there, other=0).to(tl.int32)
        code = code & ((1 << bits) - 1)
        word |= tl.where(shift >= 0, code << tl.maximum(shift, 0), code >> tl.maximum(-shift, 0))
    tl.store(packed + byte, word.to(tl.uint8), mask=byte < count)


@triton.jit
def unpack_row(
    packed, codes, count, size, bits: tl.constexpr, kind: tl.constexpr, columns: tl.constexpr
):
    """Bit streams -> one code an entry, `count` in all; kind: how a pattern is read."""
    index = tl.program_id(0).to(tl.int64) * columns + tl.arange(0, columns)
    start, j = index, tl.zeros([1], tl.int64)
    mask = (index < count)[:, None]
    code = load_ragged(packed, start, j, mask, bits, size)
    code = code & ((1 << bits) - 1)
    if kind == "signed":
        code = (code << (32 - bits)) >> (32 - bits)
    elif kind == "binary":
        code = 2 * code - 1
    tl.store(codes + index[:, None], code.to(codes.dtype.element_ty), mask=mask)
