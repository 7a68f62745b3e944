# SPDX-License-Identifier: BSD-3-Clause
"""A format is a value: what it knows of its codes, and how many bits it takes."""

import pickle

import pytest

from blockscale.core.parse import CATALOG, parse


@pytest.mark.parametrize("name", CATALOG)
def test_a_value(name: str) -> None:
    fmt = parse(name)
    assert pickle.loads(pickle.dumps(fmt)) == fmt
    assert hash(pickle.loads(pickle.dumps(fmt))) == hash(fmt)
    assert len({fmt, parse(str(fmt))}) == 1
    with pytest.raises(AttributeError):
        fmt.asym = True


@pytest.mark.parametrize(
    ("spelling", "shape", "bits"),
    [
        ("int8:tensor:fp32", (16, 16), 8 + 32 / 256),
        ("int4:group32:fp16", (4, 64), 4 + 16 / 32),
        ("int4:group32:fp16", (4, 65), 4 + 3 * 16 / 65),  # a last group of one
        ("uint4:group32:fp32:asym", (4, 64), 4 + (32 + 32) / 32),  # zero points are int32
        ("e2m1:group32:e8m0/floor", (4, 64), 4 + 8 / 32),
        ("e2m1:group16:e4m3", (4, 64), 4 + 8 / 16 + 32 / 256),  # one outer scale
        ("e2m1:group16:(e4m3:channel0:fp32)", (4, 64), 4 + 8 / 16 + 4 * 32 / 256),
        ("int8:channel0:bf16", (4, 64), 8 + 16 / 64),
        ("int8:tensor:fp32", (), 8 + 32),
        ("int8:tensor:fp32", (0, 4), 8 + 32),  # of no elements: what one would take
    ],
)
def test_stored_bits(spelling: str, shape: tuple[int, ...], bits: float) -> None:
    assert parse(spelling).bits_per_element(shape) == bits


@pytest.mark.parametrize(
    ("spelling", "wide", "fraction_bits", "levels"),
    [
        ("int8:tensor:fp32", False, 0, 127),
        ("int8:tensor:fp32:full", True, 0, 127),
        ("int8:tensor:fp32:half", True, 0, 127.5),
        ("int8:tensor:fp32:asym", True, 0, 255),
        ("uint4:tensor:fp32:asym", True, 0, 15),
        ("int8:tensor:e8m0/floor", False, 6, 127),
        ("int8:tensor:pow2/floor", False, 0, 127),
        ("e4m3:tensor:e8m0/floor", False, 0, 448),
        ("binary:tensor:fp32", False, 0, 1),
    ],
)
def test_what_options_change(spelling: str, wide: bool, fraction_bits: int, levels: float) -> None:
    fmt = parse(spelling)
    assert (fmt.wide, fmt.fraction_bits, fmt.levels.value) == (wide, fraction_bits, levels)
    assert fmt.bits == fmt.element.bits


def test_without_chance() -> None:
    drawn = parse("int4:group8:fp32:asym:recip:stochastic")
    assert str(drawn.deterministic) == "int4:group8:fp32:asym:recip"
    up = parse("int4:group8:fp32:up")
    assert up.deterministic is up
