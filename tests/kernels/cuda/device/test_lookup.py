# SPDX-License-Identifier: BSD-3-Clause
"""How codes of a table are looked for: every table against a search by hand."""

import math
import struct
from bisect import bisect_left

import pytest
import torch

from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.kernels.cuda.device.lookup import LANES, Lookup, tables_of
from tests.support.cuda_device_inputs import midpoints
from tests.support.cuda_equal import wrong
from tests.support.some import crossed

NAMES = [
    "nf4", "fp4", "iq4_nl", "book(-1,-0.5,0,0.5,1)", "book(0,0.5,1,2,-0,-0.5,-1,-2)", "book(0,1)",
    "book(0.25,-3,1e-05,7)", "book(-0,3,0,-1,1)", "log4f1", "log8f3", "log8f1", "book(-1,1)",
    f"book({','.join(str(k * k) for k in range(256))})",
]  # fmt: skip


def numbers(name: str):
    return parse(f"{name}:tensor:fp32").element.numbers(False)


def as_float(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<i", bits))[0])


@pytest.mark.parametrize("name", NAMES)
def test_the_tables_find_every_place(name: str) -> None:
    """Walked through in Python, for numbers at, between and beyond all thresholds."""
    element = numbers(name)
    how = tables_of(element)
    half = len(element.values) // 2
    thresholds = element.thresholds[half:] if how.symmetric else element.thresholds
    order = [c for c in element.order if not how.symmetric or c < half]
    points = [*thresholds, *(t + 1e-3 * abs(t) + 1e-7 for t in thresholds), 0.0, 1e30, -1e30]
    for y in [p for p in points if p >= 0 or not how.symmetric]:
        if how.signed_zeros and y == 0:
            continue  # bits decide: tests of the kernels
        want = order[bisect_left(thresholds, y)]
        if how.slope:
            at = min(max(how.slope * y + how.start, 0.0), 1.0)
            bucket = round((LANES - 1) * at)
            both = how.table("place")[bucket]
            above = y > as_float(how.table("threshold")[bucket])
            found = both >> 8 if above else both & 0xFF
        else:
            node = 1
            for _ in range(how.steps):
                bits = how.table("threshold")[node]
                limit = as_float(bits ^ 0x7FFFFFFF if how.signed_zeros and bits < 0 else bits)
                node = 2 * node + (y > limit)
            place = node - 2**how.steps
            found = how.table("order")[place // 4] >> 8 * (place % 4) & 0xFF
        assert found == want, (y, found, want)


@pytest.mark.parametrize(
    ("name", "mirrored", "buckets", "plain"),
    [
        ("nf4", False, True, True), ("fp4", True, True, True), ("log8f3", True, False, True),
        ("book(-0,3,0,-1,1)", False, False, True), ("log8f1", True, False, False),
        ("book(1e-30,-1e-30)", False, False, False), ("book(-1,1)", False, False, False),
    ],
)  # fmt: skip
def test_which_way(name: str, mirrored: bool, buckets: bool, plain: bool) -> None:
    how = Lookup(numbers(name)).how
    assert (how.symmetric, how.slope > 0, how.plain) == (mirrored, buckets, plain)


@pytest.mark.some(3)
@pytest.mark.parametrize("name", NAMES)
def test_registers_hold_their_entries(name: str) -> None:
    """The tree of selections, run for every lane."""
    how = tables_of(numbers(name))
    for table, entries in how.tables:
        for part in range(math.ceil(len(entries) / LANES)):
            own = entries[part * LANES : (part + 1) * LANES]
            for lane in range(LANES):
                assert selected(how.ptx(table, part), lane) == own[lane % len(own)] & 0xFFFFFFFF


def selected(ptx: str, lane: int) -> int:
    """What PTX of `mov`, `and`, `setp.ne` and `selp` makes for a lane."""
    values: dict[str, int] = {}

    def read(name: str) -> int:
        return values[name] if name in values else int(name, 0)

    for line in ptx.strip("{} ").split(";"):
        op, _, rest = line.strip().partition(" ")
        to, *given = (each.strip() for each in rest.split(","))
        if op == "mov.u32":
            values[to] = lane
        elif op == "mov.b32":
            values[to] = read(given[0])
        elif op == "and.b32":
            values[to] = read(given[0]) & read(given[1])
        elif op == "setp.ne.u32":
            values[to] = int(read(given[0]) != read(given[1]))
        elif op == "selp.b32":
            values[to] = read(given[0]) if values[given[2]] else read(given[1])
        else:
            assert op in (".reg", ""), op
    return values["$0"]


# numpy, in which the interpreter computes, tells of infinities and NaN
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

NAMES_of_codebook = [
    "nf4", "fp4", "iq4_nl", "book(-1,-0.5,0,0.5,1)", "book(0,0.5,1,2,-0,-0.5,-1,-2)",
    "book(0.25,-3,1e-05,7)", "book(-0,3,0,-1,1)", "log4f1", "log8f3", "log8f1", "book(-1,1)",
    "book(1e-30,-1e-30)",
]  # fmt: skip


@pytest.mark.some(12)
@pytest.mark.parametrize("name", NAMES_of_codebook)
def test_every_midpoint(name: str) -> None:
    """Values, what lies halfway, one float32 to each side, zeros, infinities and NaN."""
    x = midpoints(f"{name}:tensor:fp32")
    assert wrong(x, f"{name}:tensor:fp32", given=QParams(torch.ones(1))) == []


@pytest.mark.some(12)
@pytest.mark.parametrize(
    "scale", crossed(2, [3.0, -2.0, 0.0, -0.0, 2.0**-149, 3e38, torch.nan, torch.inf])
)
def test_given_scales(scale: float) -> None:
    for fmt in ("nf4:tensor:fp32", "fp4:tensor:fp32:recip", "book(-0,3,0,-1,1):tensor:fp32"):
        x = torch.cat([torch.randn(50), midpoints(fmt), midpoints(fmt) * scale])
        assert wrong(x, fmt, given=QParams(torch.tensor([scale]))) == [], fmt
