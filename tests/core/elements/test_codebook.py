# SPDX-License-Identifier: BSD-3-Clause
"""Codebooks: the nearest value of a table, with the tables of their producers."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from blockscale.core.elements import read_element
from blockscale.core.elements.codebook import EXAMPLES, Codebook, book, table
from tests.core.elements.points import encode

TIES = {"nf4": "down", "iq4_nl": "up"}  # of bitsandbytes (y > middle) and of ggml (y < middle)


@dataclass(frozen=True)
class Table:
    """A table of rationals by code, searched from end to end."""

    table: tuple[Fraction, ...]
    negative_zero: int | None
    ties: str
    fraction_bits = 0
    nan = None

    @property
    def bits(self) -> int:
        return max(1, math.ceil(math.log2(len(self.table))))

    @property
    def codes(self) -> range:
        return range(len(self.table))

    @property
    def signed(self) -> bool:
        return min(self.table) < 0

    @property
    def max(self) -> Fraction:
        return min(-min(self.table), max(self.table)) if self.signed else max(self.table)

    @property
    def levels(self) -> Fraction:
        return self.max

    @property
    def low(self) -> Fraction:
        return min(self.table)

    @property
    def high(self) -> Fraction:
        return max(self.table)

    @property
    def smallest_normal(self) -> Fraction:
        return min(v for v in self.table if v > 0)

    @property
    def mbits(self) -> int:
        odd = self.max.numerator
        while odd % 2 == 0:
            odd //= 2
        return odd.bit_length() - 1

    def decode(self, code: int) -> float:
        return -0.0 if code == self.negative_zero else float(self.table[code])

    def encode(self, y: float, *_: Any) -> int:
        y = 0.0 if math.isnan(y) else max(min(y, 2.0**127), -(2.0**127))
        exactly = Fraction(y)
        distances = [abs(exactly - v) for v in self.table]
        least = min(distances)
        near = [c for c in self.codes if distances[c] == least]
        if self.negative_zero in near and len(near) == 2 and not any(self.table[c] for c in near):
            minus = math.copysign(1, y) < 0
            return next(c for c in near if (c == self.negative_zero) == minus)
        if self.ties == "zero":  # halfway between -v and v: v
            return min(near, key=lambda c: (abs(self.table[c]), -self.table[c], self._late(c, y)))
        return (max if self.ties == "up" else min)(near, key=lambda c: self.table[c])

    def _late(self, code: int, y: float) -> bool:
        return (code == self.negative_zero) != (math.copysign(1, y) < 0)

    def holds(self, y: float, *_: Any) -> bool:
        return self.low <= Fraction(y) <= self.high


def exact(name: str, options: frozenset[str]) -> Table | None:
    """The oracle of the element `name`, from its decoded table."""
    del options
    element = read_element(name)
    if not isinstance(element, Codebook):
        return None
    values = element.table
    negative = [c for c, v in enumerate(values) if v == 0 and math.copysign(1, v) < 0]
    zero = negative[0] if negative else None
    return Table(tuple(map(Fraction, values)), zero, TIES.get(name, "zero"))


@pytest.mark.some(3)
@pytest.mark.parametrize("name", EXAMPLES)
def test_every_middle_and_its_neighbours(name: str) -> None:
    element, oracle = read_element(name), exact(name, frozenset())
    assert isinstance(element, Codebook) and oracle is not None
    points = [0.0, -0.0, math.inf, -math.inf, math.nan, 2.0**-149, -(2.0**-149)]
    for low in element.table:
        for high in element.table:
            middle = np.float32((Fraction(low) + Fraction(high)) / 2)
            points += [float(middle), *(float(np.nextafter(middle, to)) for to in (-9e9, 9e9))]
    points = sorted(set(points), key=repr)
    found = encode(name, torch.tensor(points, dtype=torch.float32)).tolist()
    assert found == [oracle.encode(p) for p in points]


def test_tables_of_bitsandbytes_and_ggml_by_their_own_text() -> None:
    """fp4 as in bitsandbytes' `create_fp4_map` (a sign, two exponent bits, one mantissa bit, whose
    subnormal is 1/16 of what a float's would be), in units of its largest value."""
    magnitudes = [0, 0.0625, 8, 12, 4, 6, 2, 3]
    expected = [np.float32(m / 12) for m in magnitudes] + [-np.float32(m / 12) for m in magnitudes]
    values = read_element("fp4").decode(torch.arange(16, dtype=torch.uint8))
    assert values.tolist() == [float(v) for v in expected]
    assert math.copysign(1, values[8]) == -1
    nf4 = read_element("nf4").decode(torch.arange(16, dtype=torch.uint8))
    assert nf4[7] == 0 and nf4[0] == -1 and nf4[15] == 1 and bool((nf4.diff() > 0).all())


def test_nf4_is_made_of_quantiles() -> None:
    """QLoRA, appendix E: the quantiles of a normal distribution, 8 below and 9 above, scaled.

    The offset 0.9677083 is that of the authors' code; their table has the float32 of a float64."""
    from scipy.stats import norm  # type: ignore[import-untyped]

    offset = 0.9677083
    above = norm.ppf(np.linspace(offset, 0.5, 9)[:-1])
    below = -norm.ppf(np.linspace(offset, 0.5, 8)[:-1])
    table = np.sort(np.concatenate([above, [0.0], below])) / above.max()
    found = read_element("nf4").decode(torch.arange(16, dtype=torch.uint8)).numpy()
    assert np.abs(found - table).max() < 2.0**-22  # float32 of their own float64 arithmetic


def test_codes_beyond_the_table_mean_nan() -> None:
    values = read_element("book(-1,-0.5,0,0.5,1)").decode(torch.arange(8, dtype=torch.uint8))
    assert values[:5].tolist() == [-1, -0.5, 0, 0.5, 1] and bool(values[5:].isnan().all())


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([1.0], "2 to 256 values"),
        ([0.0] * 300, "2 to 256 values"),
        ([0.0, 1e39], "finite float32"),
        ([0.0, float("nan")], "finite float32"),
        ([0.1, 0.1 + 1e-10], "twice"),
        ([-1.0, 0.0], "above 0"),
    ],
)
def test_bad_tables(values: list[float], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        book(values)


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (
            (-1.0, math.nan, 1.0),
            "posit: code 1 of its table is nan.*codes after the last",
        ),
        ((-1.0, 1.0, math.inf), "posit: code 2 of its table is inf"),
        ((1.0,), "posit: a table must have 2 to 256 values, got 1"),
    ],
)
def test_a_table_that_is_no_list_of_numbers(table: tuple[float, ...], reason: str) -> None:
    """As a posit's NaR in the middle of its codes: it is said where the table is made."""
    with pytest.raises(ValueError, match=reason):
        Codebook("posit", table)
    with pytest.raises(ValueError, match="ties 'even'; choose from zero, down, up"):
        Codebook("posit", (0.0, 1.0), "even")


@pytest.mark.parametrize("name", ["book()", "book(1,)", "book(1,x)", "book(0;1)"])
def test_bad_spellings(name: str) -> None:
    with pytest.raises(ValueError, match=r"numbers with commas"):
        read_element(name)


def test_one_spelling_of_one_table() -> None:
    element = read_element("book(-1.0, 0.10000000149011612,5e-1)")
    assert element.name == "book(-1,0.1,0.5)"
    assert read_element(element.name) == element


VALUES = (-1.5, 0.0, -0.0, 2.0**-149, 3.4028234663852886e38, math.inf, 0.1)


def bits(x):
    return x.view(torch.int32) if x.dtype == torch.float32 else x


@pytest.mark.parametrize(
    ("values", "dtype"), [(VALUES, torch.float32), ((3, 0, 255), torch.uint8)], ids=["float", "int"]
)
def test_a_traced_table_is_the_eager_one(values, dtype):
    x = torch.zeros(2)
    traced = make_fx(lambda x: table(values, dtype, x))(x)
    found = traced(x)
    assert found.dtype == dtype
    assert torch.equal(bits(found), bits(table(values, dtype, x)))
    assert torch.equal(bits(found), bits(torch.tensor(values, dtype=dtype)))


def test_a_traced_table_holds_no_tensor():
    traced = make_fx(lambda x: table(VALUES, torch.float32, x))(torch.zeros(2))
    assert not [node for node in traced.graph.nodes if node.op == "get_attr"]
    constants = make_fx(lambda x: x + torch.tensor([1.0]))(torch.zeros(2))  # what it stands for
    assert [node for node in constants.graph.nodes if node.op == "get_attr"]
