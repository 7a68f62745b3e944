# SPDX-License-Identifier: BSD-3-Clause
"""Rounding in onnxruntime gives the reference's values: midpoints, ties, limits, odd numbers."""

import pytest
import torch

from blockscale.core import reference
from blockscale.core.parse import CATALOG, parse
from blockscale.core.rounding import rounding
from blockscale.export.to_onnx.encode import (
    choose,
    encoded,
    power_of_two,
    refusal,
    rounded,
    scales_refused,
)
from blockscale.export.to_onnx.scope import split
from tests.export.to_onnx.running import EDGES, run, same

ELEMENTS = [
    *("int8", "int4", "int2", "uint8", "uint3", "int16", "ternary", "binary", "e4m3", "e5m2"),
    *("e2m1", "e3m2", "e2m3", "e3m3", "e5m0", "e4m3r0", "log4", "log7", "nf4", "fp4", "iq4_nl"),
    *("apot4", "log8f3", "book(-1,-0.5,0,0.5,1)", "book(0,1)"),
]
ROUNDINGS = ("nearest_even", "nearest_away", "toward_zero", "down", "up")


def around(fmt):
    """Every value, every midpoint of two, and their neighbours; edges, infinities and NaN."""
    element = fmt.element
    if element.bits <= 8:
        codes = torch.arange(2**element.bits, dtype=torch.uint8)
        values = element.decode(element.from_bits(codes))
    else:
        values = torch.arange(-40.0, 40.0)
    values = values[values.isfinite()].sort().values
    middle = (values[1:] + values[:-1]) / 2
    y = torch.cat([values, middle, EDGES, 2 * values])
    up, down = (torch.nextafter(y, torch.full_like(y, end)) for end in (1e38, -1e38))
    odd = torch.tensor([torch.nan, torch.inf, -torch.inf])
    return torch.cat([y, up, down, odd])


def check(fmt):
    y = around(fmt)
    expected = fmt.element.encode(y, rounding(fmt.rounding, y.new_empty), None, fmt.wide)
    found = run(lambda scope, names: encoded(scope, names[0], fmt), y)
    assert same(found, fmt.element.decode(expected)), fmt


@pytest.mark.some(4)
@pytest.mark.parametrize("name", ELEMENTS)
def test_values_are_the_references(name):
    check(parse(f"{name}:tensor:fp32"))


@pytest.mark.some(3)
@pytest.mark.parametrize("how", ROUNDINGS)
@pytest.mark.parametrize("name", ["int8", "e2m1", "e4m3"])
def test_every_rounding(name, how):
    check(parse(f"{name}:tensor:fp32:{how}"))
    t = torch.cat([EDGES, torch.arange(-4, 4, 0.25)])
    found = run(lambda scope, names: rounded(scope, names[0], how), t)
    assert same(found, rounding(how, t.new_empty)(t))


@pytest.mark.parametrize("spelling", ["uint8:tensor:fp32:asym", "uint4:tensor:fp32:asym(fp16)"])
def test_zero_points(spelling):
    fmt, y = parse(spelling), around(parse(spelling))
    zero = torch.tensor([3.0 if fmt.zero is None else 3.4])

    def build(scope, names):
        return encoded(scope, names[0], fmt, names[1])

    points, whole = reference._points(y, reference.QParams(torch.ones(1), zero_point=zero), fmt)
    codes = fmt.element.encode(points, rounding("nearest_even", y.new_empty), whole, fmt.wide)
    assert same(run(build, y, zero), codes.float() - zero)


def test_exponents_come_from_bits():
    sizes = torch.tensor([2.0**n for n in range(-126, 128)])
    below = torch.nextafter(sizes[1:], sizes[:-1])
    found = run(lambda scope, names: power_of_two(scope, names[0]), torch.cat([sizes, below]))
    assert torch.equal(found, torch.cat([sizes, sizes[:-1]]))


def test_what_no_file_can_round_to():
    assert "stochastic" in refusal(parse("int8:tensor:fp32:stochastic"))
    assert "learned" in refusal(parse("book4:tensor:fp32"))
    assert refusal(parse("mxfp8")) is None


# Scales that onnxruntime chooses are the reference's, to the bit: all rules, all kinds.


RULES = ("floor", "ceil", "rceil", "even", "tosa", "nearest")
SPELLINGS = [
    *(fmt for name, fmt in CATALOG.items() if name != "nvfp4_token"),  # outer scales of rows
    *(f"{e}:group8:e8m0/{rule}" for rule in RULES for e in ("int8", "e4m3", "e2m1")),
    *(f"{e}:group8:pow2/{rule}" for rule in RULES for e in ("int8", "e4m3", "e2m1")),
    *("int8:group8:fp16", "int8:group8:bf16", "int8:token:fp32:full", "int8:token:fp32:half"),
    *("int4:group8:fp16:signed", "uint8:group8:fp32", "uint8:group8:e8m0", "uint4:token:fp16:asym"),
    *("uint8:group8:pow2/nearest:asym", "uint8:group8:fp32:asym(fp16)", "iq4_nl:group8:fp32"),
    *("int8:group8:e4m3", "e2m1:group8:e4m3/inv", "int4:group8:(uint8:tensor:fp16)"),
    *("log4:group8:e8m0", "binary:group8:fp32", "ternary:group8:pow2/floor", "int8:tile4x8:fp32"),
]  # fmt: skip


def inputs():
    """Blocks of every size of numbers: near powers of two, zeros, tiny, large, with odd ones."""
    torch.manual_seed(0)
    x = torch.randn(8, 32) * 2.0 ** torch.randint(-20, 20, (8, 1))
    near = torch.nextafter(torch.tensor(1.0), torch.tensor(0.0))
    x[1, :8] = torch.cat([2.0 ** torch.arange(-4.0, 3.0), near[None]])
    x[2, 8:16], x[2, 16:24] = 0, -torch.arange(8.0)
    x[3, :28] = EDGES
    x[4] = torch.arange(32) % 5 * 1e-39
    return x


def steps(fmt, x):
    def build(scope, names):
        blocks = split(scope, names[0], fmt.block, tuple(x.shape))
        chosen = choose(scope, blocks, fmt)
        step = chosen.step
        if chosen.zero:
            step = scope.op("Concat", scope.op("Reshape", step, scope.ints(-1)),
                            scope.op("Reshape", chosen.zero, scope.ints(-1)), axis=0)  # fmt: skip
        return scope.op("Reshape", step, scope.ints(-1))

    return run(build, x)


def expected(fmt, x):
    parts = reference.choose_qparams(x, fmt)
    step = reference.step_of(parts, fmt).flatten()
    if parts.zero_point is None:
        return step
    return torch.cat([step, parts.zero_point.float().flatten()])


@pytest.mark.some(4)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_scales_are_the_references(spelling):
    fmt, x = parse(spelling), inputs()
    assert same(steps(fmt, x), expected(fmt, x))


@pytest.mark.some(3)
@pytest.mark.parametrize("spelling", ["int8:group8:fp32", "mxfp8", "nvfp4", "binary:token:fp32"])
@pytest.mark.parametrize("odd", [torch.nan, torch.inf, -torch.inf])
def test_numbers_that_are_none(spelling, odd):
    fmt, x = parse(spelling), inputs()
    x[0, 3], x[5, :] = odd, odd
    found, wanted = steps(fmt, x), expected(fmt, x)
    if fmt.asym:
        wanted = wanted.where(~found.isnan(), torch.nan)
    assert same(found, wanted)


def test_what_no_file_chooses():
    assert "given" in scales_refused(parse("int8:tensor:e8m0/given"))
    assert "offsets" in scales_refused(parse("uint4:group32:fp16:offset"))
    assert "are for parts of a tensor: use one for the whole" in scales_refused(
        parse("uint4:group32:(uint6:group8:fp16)")
    )
    assert scales_refused(parse("nvfp4")) is None


def test_a_file_cannot_compare_two_scales() -> None:
    reason = scales_refused(parse("e2m1:group16:e4m3/four_six"))
    assert reason == "no operator compares the errors of two scales: use e2m1:group16:e4m3"
