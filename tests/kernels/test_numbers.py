# SPDX-License-Identifier: BSD-3-Clause
"""Formats as numbers, written out from docs/numerics.md; elements that no kernel knows."""

import math
from collections.abc import Iterator
from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blockscale.core.block import WHOLE, Block, block_counts
from blockscale.core.element import ElementNumbers
from blockscale.core.parse import CATALOG, parse
from blockscale.kernels.numbers import ACTIVATIONS, lower, lowered, merged, supports_families
from tests.kernels.codebook import registered


@pytest.fixture
def _codebook() -> Iterator[None]:
    with registered():
        yield


# docs/numerics.md, 1.1: family, bits, signed, low, high, smallest normal, statistic, mantissa bits,
# bias, largest code that is a number, NaN, infinity
ELEMENTS = {
    "int8": ("integer", 8, True, -127.0, 127.0, 1.0, "magnitude"),
    "uint4": ("integer", 4, False, 0.0, 15.0, 1.0, "high"),
    "int16": ("integer", 16, True, -32767.0, 32767.0, 1.0, "magnitude"),
    "ternary": ("integer", 2, True, -1.0, 1.0, 1.0, "mean_above"),
    "binary": ("binary", 1, True, -1.0, 1.0, 1.0, "mean"),
    "e4m3": ("minifloat", 8, True, -448.0, 448.0, 2**-6, "magnitude", 3, 7, 126, 127, -1),
    "e5m2": ("minifloat", 8, True, -57344.0, 57344.0, 2**-14, "magnitude", 2, 15, 123, 127, 124),
    "e2m1": ("minifloat", 4, True, -6.0, 6.0, 1.0, "magnitude", 1, 1, 7, -1, -1),
    "e3m2r4": ("minifloat", 6, True, -14.0, 14.0, 0.25, "magnitude", 2, 3, 27, 31, -1),
    "log4": ("minifloat", 4, True, -1.0, 1.0, 2**-6, "magnitude", 0, 7, 7, -1, -1),
}


@pytest.mark.usefixtures("_codebook")
@pytest.mark.parametrize("name", ELEMENTS)
def test_elements(name: str) -> None:
    numbers = lowered(f"{name}:tensor:fp32")
    assert numbers.element == ElementNumbers(*ELEMENTS[name])
    assert numbers.statistic == numbers.element.statistic


@pytest.mark.usefixtures("_codebook")
@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        ("int8:tensor:fp32", {"scale": "fp32", "levels": 127.0, "emax": 6, "threshold": 0}),
        ("int8:tensor:fp32:asym", {"statistic": "range", "levels": 255.0, "asym": True}),
        ("int8:tensor:bf16:full", {"statistic": "range", "full": True, "scale": "bf16"}),
        ("int8:tensor:fp16:half", {"statistic": "magnitude", "full": False, "levels": 127.5}),
        ("int8:tensor:pow2/floor:full", {"statistic": "magnitude", "full": False}),
        ("int8:group32:e8m0/floor", {"fraction_bits": 6, "threshold": 1 << 23, "poisons": True}),
        ("e2m1:group32:e8m0/ceil", {"scale": "e8m0", "threshold": 1, "emax": 2, "levels": 6.0}),
        ("e2m1:group32:e8m0/nearest", {"nearest": True, "threshold": 0}),
        ("int4:token:fp32:recip:stochastic", {"recip": True, "rounding": "stochastic"}),
        (
            "e2m1:group16:e4m3",
            {"scale": "two_level", "poisons": True, "outer_levels": 2688.0, "inner": "e4m3"},
        ),
        (
            "int4:group16:(uint6:group4:fp32)",
            {"scale": "two_level", "poisons": False, "outer_levels": 441.0, "inner": "uint6"},
        ),
    ],
)
def test_formats(spelling: str, expected: dict[str, object]) -> None:
    numbers = lowered(spelling)
    for name, value in expected.items():
        if name == "inner":
            value = parse(f"{value}:tensor:fp32").element.numbers(False)
        assert getattr(numbers, name) == value, name


@pytest.mark.usefixtures("_codebook")
@pytest.mark.parametrize(("option", "low"), [("", -7.0), ("full", -8.0), ("half", -8.0)])
def test_the_lowest_code(option: str, low: float) -> None:
    spelling = ":".join(["int4:tensor:fp32", *([option] if option else [])])
    assert lowered(spelling).element.low == low


@pytest.mark.usefixtures("_codebook")
def test_named_formats_are_known_by_every_spelling() -> None:
    for name, spelling in CATALOG.items():
        numbers = lower(name)
        assert numbers is not None, name
        assert numbers is lower(parse(name)) or numbers == lower(spelling)
        assert hash(numbers) == hash(lower(spelling))


@pytest.mark.usefixtures("_codebook")
@pytest.mark.parametrize(
    "spelling",
    [
        "made4:tensor:fp32",
        "twice4:group32:e8m0/floor",
        "made4:group16:e4m3",
        "int4:group16:(utwice4:tensor:fp32)",
    ],
)
def test_an_unknown_element_has_no_numbers(spelling: str) -> None:
    assert lower(spelling) is None
    with pytest.raises(TypeError, match="no kernel supports the elements"):
        lowered(spelling)


@pytest.mark.usefixtures("_codebook")
def test_a_subclass_says_its_own_numbers() -> None:
    """Its codes mean something else, so its parent's numbers would be wrong."""
    assert parse("int4:tensor:fp32").element.numbers(False) is not None
    assert parse("twice4:tensor:fp32").element.numbers(False) is None


@pytest.mark.usefixtures("_codebook")
def test_families() -> None:
    """Every format of a call counts, and so does the element of a scale's own format."""
    of = {
        name: parse(name) for name in ("int8:token:fp32", "e2m1:group16:e4m3", "binary:token:fp32")
    }
    integer, minifloats, binary = of.values()
    mixed = parse("int4:group16:(e4m3:tensor:fp32)")
    assert supports_families(["integer"])([integer]) is True
    assert supports_families(["integer"])([]) is True
    assert supports_families([])([integer]) is False
    assert supports_families(["minifloat"])([minifloats]) is True
    assert supports_families(["integer"])([mixed]) is False
    assert supports_families(["minifloat"])([mixed]) is False
    assert supports_families(["integer", "minifloat"])([mixed, integer, minifloats]) is True
    assert supports_families(["integer", "minifloat"])([mixed, binary]) is False


@pytest.mark.usefixtures("_codebook")
@pytest.mark.parametrize("spelling", ["made4:tensor:fp32", "int4:group16:(utwice4:tensor:fp32)"])
def test_no_family_is_no_support(spelling: str) -> None:
    supports = supports_families(["integer", "minifloat", "binary", "codebook"])
    assert supports([parse(spelling)]) is False
    assert supports([parse("int8:token:fp32"), parse(spelling)]) is False


# Merging dimensions: the same blocks, and the same order of their scales.


def block_of_each(shape: tuple[int, ...], sizes: tuple[int, ...]) -> torch.Tensor:
    """The index of each element's scale in row-major order, flat."""
    counts = block_counts(shape, sizes)
    block = Block("any", tuple(enumerate(sizes)))
    index = torch.arange(prod(counts)).reshape(counts)
    return block.expand(index, shape).expand(shape).reshape(-1)


DIMENSION = st.integers(1, 7).flatmap(
    lambda n: st.tuples(st.just(n), st.integers(0, 8) | st.sampled_from([1, WHOLE, n]))
)


@pytest.mark.slow
@given(st.lists(DIMENSION, max_size=6))
@settings(max_examples=200, deadline=None)
def test_the_same_elements_share_a_scale(dims: list[tuple[int, int]]) -> None:
    shape, sizes = tuple(n for n, _ in dims), tuple(size for _, size in dims)
    fewer, fewer_sizes = merged(shape, sizes)
    assert prod(fewer) == prod(shape) and 1 not in fewer
    assert all(1 <= size <= n for n, size in zip(fewer, fewer_sizes, strict=True))
    assert torch.equal(block_of_each(fewer, fewer_sizes), block_of_each(shape, sizes))
    assert merged(fewer, fewer_sizes) == (fewer, fewer_sizes)


@pytest.mark.parametrize(
    ("shape", "sizes", "expected"),
    [
        ((), (), ((), ())),
        ((1, 1), (1, WHOLE), ((), ())),
        ((4, 64), (1, 32), ((256,), (32,))),
        ((4, 60), (1, 32), ((4, 60), (1, 32))),
        ((8, 6, 3, 3), (1, 2, 3, 3), ((432,), (18,))),
        ((8, 5, 3, 3), (1, 2, 3, 3), ((8, 45), (1, 18))),
        ((2, 3, 4), (WHOLE, WHOLE, WHOLE), ((24,), (24,))),
        ((2, 3, 4), (WHOLE, 1, WHOLE), ((2, 12), (2, 4))),
        ((64, 64, 64), (4, 8, 16), ((64, 64, 64), (4, 8, 16))),
        ((4, 1, 8, 1), (2, 5, 4, 7), ((4, 8), (2, 4))),
        ((3, 4, 5), (100, 100, 2), ((12, 5), (12, 2))),
        ((2, 0, 3), (1, 2, 3), ((2, 0, 3), (1, 2, 3))),
    ],
)
def test_by_hand(shape, sizes, expected) -> None:
    assert merged(shape, sizes) == expected


def test_refuses_another_number_of_sizes() -> None:
    with pytest.raises(ValueError, match="expected a block size for each of 2 dimensions"):
        merged((2, 3), (1,))


# The activations by their definitions, in float64 and written out with Python's math.

NUMBERS = (-40.0, -6.5, -3.0, -1.25, -1e-9, -0.0, 0.0, 1e-9, 0.75, 2.9999, 3.0, 6.0, 6.25, 40.0)


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


EXPECTED = {
    "": lambda x: x,
    "relu": lambda x: max(x, 0.0),
    "relu6": lambda x: min(max(x, 0.0), 6.0),
    "gelu": lambda x: x * math.erfc(-x / math.sqrt(2)) / 2,
    "gelu_tanh": lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x * _sigmoid(x),
    "hardswish": lambda x: x * min(max(x + 3, 0.0), 6.0) / 6,
    "sigmoid": _sigmoid,
    "tanh": math.tanh,
}


def test_each_is_tested() -> None:
    assert ACTIVATIONS.keys() == EXPECTED.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_definitions(name: str) -> None:
    found = ACTIVATIONS[name](torch.tensor(NUMBERS, dtype=torch.float64)).tolist()
    assert found == pytest.approx([EXPECTED[name](x) for x in NUMBERS], rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("name", EXPECTED)
def test_what_is_not_a_number_stays_that(name: str) -> None:
    assert ACTIVATIONS[name](torch.tensor([torch.nan])).isnan().all()
