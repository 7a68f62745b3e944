# SPDX-License-Identifier: BSD-3-Clause
"""Codes of tables: numbers in steps become codes, and codes values (docs/numerics.md, section 4).

A warp holds a table in a register of each thread, 32 entries at a time, made from constants; one
shuffle looks an entry up for 32 numbers. lookup.py says how codes are looked for.
"""

import triton
import triton.language as tl

from blockscale.kernels.cuda.device.lookup import Lookup
from blockscale.kernels.cuda.device.numerics import INTERPRETED, MAGIC, bits_of, float_of

SIGN: tl.constexpr = tl.constexpr(-0x80000000)


@triton.constexpr_function
def looked_up(element):
    """The lookup.Tables of an element."""
    return Lookup(element).how


@triton.constexpr_function
def least_value(element):
    """The smallest value of the table."""
    return min(value for value in element.values if value == value)


@triton.constexpr_function
def entry(element, name, i):
    """The i-th entry of a table, int32."""
    return Lookup(element).how.table(name)[i]


@triton.constexpr_function
def register_of(element, name, part):
    """PTX that makes a register of 32 entries (lookup.Tables)."""
    return Lookup(element).how.ptx(name, part)


@triton.constexpr_function
def count(element, name):
    """How many entries a table has."""
    return len(Lookup(element).how.table(name))


@triton.jit
def at_index(
    index, element: tl.constexpr, name: tl.constexpr, first: tl.constexpr, last: tl.constexpr
):
    """The entries of a table at int32 [...], which lie from `first` to before `last`: int32 [...].

    Bits of an index above those of the table's size do not matter where that is up to 32.
    """
    parts: tl.constexpr = (last + 31) // 32
    if INTERPRETED:
        size: tl.constexpr = count(element, name)
        found = tl.zeros_like(index)
        for i in tl.static_range(first, last):
            found = tl.where((index & (size - 1)) == i, entry(element, name, i), found)
    else:
        begin: tl.constexpr = first // 32
        found = shuffled(index, element, name, begin)
        for part in tl.static_range(begin + 1, parts):
            other = shuffled(index, element, name, part)
            found = tl.where((index & -32) == part * 32, other, found)
    return found


@triton.jit
def shuffled(index, element: tl.constexpr, name: tl.constexpr, part: tl.constexpr):
    """As `at_index`, of 32 entries; of an index the low 5 bits count."""
    ptx: tl.constexpr = register_of(element, name, part)
    own = tl.inline_asm_elementwise(ptx, "=r,r", [tl.program_id(0)], tl.int32, True, 1)
    return tl.inline_asm_elementwise(
        "shfl.sync.idx.b32 $0, $1, $2, 31, 0xffffffff;", "=r,r,r", [own, index], tl.int32, True, 1
    )


@triton.jit
def clamped_line(y, slope: tl.constexpr, start: tl.constexpr):
    """slope * y + start between 0 and 1."""
    by, start = tl.zeros_like(y) + slope, tl.zeros_like(y) + start
    if INTERPRETED:
        at = tl.minimum(tl.maximum(y * by + start, 0.0), 1.0)
    else:
        at = tl.inline_asm_elementwise(
            "fma.rn.sat.f32 $0, $1, $2, $3;", "=f,f,f,f", [y, by, start], tl.float32, True, 1
        )
    return at


@triton.jit
def unsigned_code(y, element: tl.constexpr):
    """Numbers in steps, no NaN -> codes; of their magnitudes where a table is mirrored."""
    how: tl.constexpr = looked_up(element)
    if how.slope > 0.0:
        at = clamped_line(y, how.slope, how.start)
        bucket = bits_of(tl.fma(at, tl.zeros_like(at) + 31.0, tl.zeros_like(at) + MAGIC))
        above = y > float_of(at_index(bucket, element, "threshold", 0, 32))
        both = at_index(bucket, element, "place", 0, 32)
        code = tl.where(above, both >> 8, both)
    else:
        code = searched(y, element)
    return code


@triton.jit
def searched(y, element: tl.constexpr):
    """As `unsigned_code`, by a binary search."""
    how: tl.constexpr = looked_up(element)
    bits = bits_of(y)
    if how.signed_zeros:  # as integers in the order of numbers, in which -0 is below 0
        bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    node = tl.zeros_like(bits) + 1
    steps: tl.constexpr = how.steps
    for step in tl.static_range(steps):
        if step == 0:  # the same for all
            limit = tl.zeros_like(bits) + entry(element, "threshold", 1)
        else:
            limit = at_index(node, element, "threshold", 1 << step, 2 << step)
        above = bits > limit if how.signed_zeros else y > float_of(limit)
        node = 2 * node + above.to(tl.int32)
    place = node - (1 << steps)
    if how.in_order:
        code = place
    else:
        words: tl.constexpr = count(element, "order")
        if words == 1:
            four = tl.zeros_like(place) + entry(element, "order", 0)
        else:
            four = at_index(place >> 2, element, "order", 0, words)
        code = four >> ((place & 3) * 8)
    return code


@triton.jit
def code_of_number(y, element: tl.constexpr):
    """Numbers in steps, float32 [...] without NaN -> codes, int32 [...]."""
    how: tl.constexpr = looked_up(element)
    if how.mirrored:
        sign: tl.constexpr = 1 << (element.bits - 1)
        code = unsigned_code(tl.abs(y), element) & (sign - 1)
        code = code | ((bits_of(y) >> (32 - element.bits)) & sign)
    else:
        code = unsigned_code(y, element)
    return code


@triton.jit
def value_of_code(code, element: tl.constexpr):
    """Codes int32 [...], bits above them do not matter -> their values, float32 [...]."""
    how: tl.constexpr = looked_up(element)
    size: tl.constexpr = count(element, "value")
    index = code
    if size > 32:
        index = code & (size - 1)
    value = at_index(index, element, "value", 0, size)
    if how.mirrored:
        value = value | ((code << (32 - element.bits)) & SIGN)
    return float_of(value)
