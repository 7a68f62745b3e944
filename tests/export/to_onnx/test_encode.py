# SPDX-License-Identifier: BSD-3-Clause
"""Rounding in onnxruntime gives the reference's values: midpoints, ties, limits, odd numbers."""

import pytest
import torch

from blockscale.core import reference
from blockscale.core.parse import parse
from blockscale.core.rounding import rounding
from blockscale.export.to_onnx.encode import encoded, power_of_two, refused, rounded
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


@pytest.mark.parametrize("name", ELEMENTS)
def test_values_are_the_references(name):
    check(parse(f"{name}:tensor:fp32"))


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
    assert "stochastic" in refused(parse("int8:tensor:fp32:stochastic"))
    assert "learned" in refused(parse("book4:tensor:fp32"))
    assert refused(parse("mxfp8")) is None
