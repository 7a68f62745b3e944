# SPDX-License-Identifier: BSD-3-Clause
"""How codes of a codebook are looked for: what the host computes from a table.

A number in steps becomes the code whose place is how many thresholds are below it. Two ways find
that place. "buckets": 32 equal intervals hold at most one threshold each, so that the interval
says which threshold to compare with. "search": a binary search, one comparison for each bit.
"""

import math
import struct
from dataclasses import dataclass
from functools import cache

import triton
import triton.language as tl

from blockscale.core.element import ElementNumbers
from blockscale.kernels.cuda.device.numerics import INTERPRETED, MAGIC, bits_of, float_of

LANES = 32  # entries that a warp holds in a register
_MARGIN = 2.0**-8  # of a bucket's width, how far from its ends a threshold lies at least


@dataclass(frozen=True)
class Tables:
    """What is looked up of a codebook.

    symmetric: the upper half of the codes has the negatives of the lower half's values, which are
        not below 0: then the rest is of magnitudes, and a sign is the upper bit of a code
    signed_zeros: the table has 0 and -0, and is not symmetric: numbers are compared as integers
    slope, start: of buckets: y is in bucket round(31 clamp(slope y + start, 0, 1)); 0 and 0 where
        codes are searched
    steps: comparisons of a search
    plain: quotients may be computed as for integers (docs/cuda.md): values lie around 1, and
        quotients below 2^-64 have the code of 0 or of -0
    tables: of each name, its entries as int32: "threshold", one for each bucket, or of each node
        of a search, which begins at node 1 and goes on at 2 n or 2 n + 1; "place", of each bucket
        the code below its threshold, and 256 times the one above; "order", four codes an entry;
        "value", the bits of each code's value
    """

    symmetric: bool
    signed_zeros: bool
    slope: float
    start: float
    steps: int
    plain: bool
    tables: tuple[tuple[str, tuple[int, ...]], ...]

    def table(self, name: str) -> tuple[int, ...]:
        """The entries of the table of this name."""
        return dict(self.tables)[name]

    def ptx(self, name: str, part: int) -> str:
        """What gives each lane of a warp its own of a table's 32 entries from 32 * part on."""
        return _entry_of_lane(self.table(name)[part * LANES : (part + 1) * LANES])

    @property
    def in_order(self) -> bool:
        """Whether a searched place is the code itself."""
        codes = b"".join(struct.pack("<i", word) for word in self.table("order"))
        return all(code == i for i, code in enumerate(codes[: len(self.table("value"))]))


class Lookup:
    """How codes of one codebook are looked for. A class: device code may not call host functions.

    how: its Tables
    """

    def __init__(self, element: ElementNumbers) -> None:
        self.how = tables_of(element)


@cache
def tables_of(element: ElementNumbers) -> Tables:
    """The tables of an element of the family "codebook"."""
    values, order, thresholds = element.values, element.order, element.thresholds
    symmetric = _is_symmetric(values)
    if symmetric:
        half = len(values) // 2
        values, order = values[:half], tuple(code for code in order if code < half)
        thresholds = thresholds[half:]
    zeros = {math.copysign(1, value) for value in values if value == 0}
    signed_zeros = len(zeros) > 1
    steps = max(1, (len(order) - 1).bit_length())
    line = (0.0, 0.0) if signed_zeros or steps == 1 else _line(thresholds)
    if line[0]:
        tables = _bucket_tables(thresholds, order, line)
    else:
        tables = {
            "threshold": _nodes(thresholds, steps, signed_zeros),
            "order": _fours(order, steps),
        }
    tables["value"] = tuple(_bits(value) for value in values)
    plain = _is_plain(element)
    return Tables(symmetric, signed_zeros, *line, steps, plain, tuple(tables.items()))


def _is_symmetric(values: tuple[float, ...]) -> bool:
    """Whether codes are magnitudes and a sign."""
    half = len(values) // 2
    low, high = values[:half], values[half:]
    pairs = [_bits(-a) == _bits(b) for a, b in zip(low, high, strict=True)]
    return all(pairs) and all(_bits(a) >= 0 for a in low) and 0.0 in low


def _line(thresholds: tuple[float, ...]) -> tuple[float, float]:
    """Slope and start of buckets that hold at most one threshold each; 0 and 0 if none do."""
    span = thresholds[-1] - thresholds[0]
    for tenths in range(10, 300):  # how far the first bucket begins below the first threshold
        beyond = span * tenths / 1000
        slope = _rounded(1 / (span + 2 * beyond)) if span else 1.0
        start = _rounded((beyond - thresholds[0]) * slope) if span else 0.5
        if not (2.0**-60 < slope < 2.0**60) or abs(start) > 2.0**20:
            continue
        places = [(LANES - 1) * (slope * t + start) for t in thresholds]
        near = [round(place) for place in places]
        apart = all(abs(place - at) < 0.5 - _MARGIN for place, at in zip(places, near, strict=True))
        if apart and len(set(near)) == len(near) and 0 <= near[0] and near[-1] < LANES:
            return slope, start
    return 0.0, 0.0


def _bucket_tables(
    thresholds: tuple[float, ...], order: tuple[int, ...], line: tuple[float, float]
) -> dict[str, tuple[int, ...]]:
    """The thresholds and codes of each bucket."""
    slope, start = line
    own = {round((LANES - 1) * (slope * t + start)): t for t in thresholds}
    limits, places, below = [], [], 0
    for bucket in range(LANES):
        limits.append(_bits(own.get(bucket, math.inf)))
        there = bucket in own
        places.append(order[below] | order[min(below + there, len(order) - 1)] << 8)
        below += there
    return {"threshold": tuple(limits), "place": tuple(places)}


def _nodes(thresholds: tuple[float, ...], steps: int, signed_zeros: bool) -> tuple[int, ...]:
    """The threshold of each node of a search, [2^steps]; the first one is not a node."""
    sorted_ones = [*thresholds, *[math.inf] * (2**steps - 1 - len(thresholds))]
    nodes = [0] * 2**steps
    for level in range(steps):
        width = 2 ** (steps - level)
        for i in range(2**level):
            bits = _bits(sorted_ones[i * width + width // 2 - 1])
            nodes[2**level + i] = bits ^ (0x7FFFFFFF if signed_zeros and bits < 0 else 0)
    return tuple(nodes)


def _fours(order: tuple[int, ...], steps: int) -> tuple[int, ...]:
    """Codes by place, four in an int32."""
    codes = [*order, *[order[-1]] * (2 ** max(steps, 2) - len(order))]
    fours = (bytes(codes[i : i + 4]) for i in range(0, len(codes), 4))
    return tuple(int(struct.unpack("<i", four)[0]) for four in fours)


def _rounded(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def _bits(value: float) -> int:
    """Of a float32."""
    return int(struct.unpack("<i", struct.pack("<f", value))[0])


def _is_plain(element: ElementNumbers) -> bool:
    """As Tables.plain."""
    sizes = [abs(t) for t in element.thresholds if t]
    low, high = -element.low, element.high
    largest = max(low, high)
    smallest_end = min(low, high) if element.signed else high
    near = 2.0**-10 <= smallest_end and largest <= 4 * max(smallest_end, 1.0)
    return near and largest <= 2.0**16 and min(sizes, default=1.0) >= 2.0**-50


def _entry_of_lane(entries: tuple[int, ...]) -> str:
    """PTX: each lane of a warp gets its own of up to 32 entries, which repeat beyond the last.

    $0 is the entry, $1 is not used. A tree of selections by the bits of the lane's number.
    """
    count = len(entries)
    assert count in (1, 2, 4, 8, 16, 32)
    lines = ["{ .reg .b32 l, t; .reg .b32 n<64>; .reg .pred p<5>; mov.u32 l, %laneid;"]
    level = [f"0x{entry & 0xFFFFFFFF:08X}" for entry in entries]
    node = 0
    for bit in range(count.bit_length() - 1):
        lines.append(f"and.b32 t, l, {1 << bit}; setp.ne.u32 p{bit}, t, 0;")
        following = []
        for even, odd in zip(level[::2], level[1::2], strict=True):
            if even == odd:
                following.append(even)
                continue
            lines.append(f"selp.b32 n{node}, {odd}, {even}, p{bit};")
            following.append(f"n{node}")
            node += 1
        level = following
    return " ".join([*lines, f"mov.b32 $0, {level[0]};", "}"])


# Codes of tables: numbers in steps become codes, and codes values (docs/numerics.md, section 4).
#
# A warp holds a table in a register of each thread, 32 entries at a time, made from constants; one
# shuffle looks an entry up for 32 numbers. lookup.py says how codes are looked for.

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
        result = tl.zeros_like(index)
        for i in tl.static_range(first, last):
            result = tl.where((index & (size - 1)) == i, entry(element, name, i), result)
    else:
        begin: tl.constexpr = first // 32
        result = shuffle(index, element, name, begin)
        for part in tl.static_range(begin + 1, parts):
            other = shuffle(index, element, name, part)
            result = tl.where((index & -32) == part * 32, other, result)
    return result


@triton.jit
def shuffle(index, element: tl.constexpr, name: tl.constexpr, part: tl.constexpr):
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
    """Numbers in steps, no NaN -> codes; of their magnitudes where a table is symmetric."""
    how: tl.constexpr = looked_up(element)
    if how.slope > 0.0:
        at = clamped_line(y, how.slope, how.start)
        bucket = bits_of(tl.fma(at, tl.zeros_like(at) + 31.0, tl.zeros_like(at) + MAGIC))
        above = y > float_of(at_index(bucket, element, "threshold", 0, 32))
        both = at_index(bucket, element, "place", 0, 32)
        code = tl.where(above, both >> 8, both)
    else:
        code = search(y, element)
    return code


@triton.jit
def search(y, element: tl.constexpr):
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
    if how.symmetric:
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
    if how.symmetric:
        value = value | ((code << (32 - element.bits)) & SIGN)
    return float_of(value)
