# SPDX-License-Identifier: BSD-3-Clause
"""Additive powers of two: the sets of the paper, written out, and their sums as bits."""

import math
from fractions import Fraction

import pytest
import torch

import blockscale as bs
from blockscale.core.elements import read_element
from blockscale.core.elements.additive_powers import EXAMPLES, magnitudes
from blockscale.core.elements.codebook import Codebook

# Exponents of the powers that each term may be, in the scale of the authors' code, whose first is
# 2^-1 (its sets for 2 to 6 bits; then they divide by the largest sum).
AUTHORS = {
    2: [[1, 2, 3]],
    3: [[1, 2, 4], [3]],
    4: [[1, 3, 5], [2, 4, 6]],
    5: [[1, 3, 6], [2, 4, 7], [5]],
    6: [[1, 4, 7], [2, 5, 8], [3, 6, 9]],
}


def sums(terms: list[list[int]]) -> list[Fraction]:
    found = [Fraction(0)]
    for term in terms:
        found = [v + p for v in found for p in (0, *(Fraction(1, 2**e) for e in term))]
    return sorted(found)


@pytest.mark.parametrize("bits", AUTHORS)
def test_the_sets_of_the_authors(bits: int) -> None:
    expected = sums(AUTHORS[bits])
    assert [Fraction(v) for v in magnitudes(bits)] == [2 * v for v in expected]
    normalized = torch.tensor([float(v) for v in expected]) * (1.0 / float(max(expected)))
    ours = torch.tensor(magnitudes(bits)) / max(magnitudes(bits))
    assert (ours - normalized).abs().max() <= 2.0**-23  # they multiply by a reciprocal


def test_equation_3_for_four_bits() -> None:
    """Figure 2 of the paper: p0 in 0, 1, 1/4, 1/16 and p1 in 0, 1/2, 1/8, 1/32."""
    expected = sorted(a + b for a in (0, 1, 1 / 4, 1 / 16) for b in (0, 1 / 2, 1 / 8, 1 / 32))
    assert list(magnitudes(4)) == expected
    assert magnitudes(4)[-1] == 1.5


@pytest.mark.parametrize("bits", range(1, 9))
def test_each_power_is_in_one_term(bits: int) -> None:
    values = magnitudes(bits)
    assert len(set(values)) == 2**bits and values[0] == 0
    powers = {v for v in values if v and math.frexp(v)[0] == 0.5}
    n, odd = divmod(bits, 2)
    assert powers == {2.0**-e for e in range(3 * n + odd)}
    for value in values:  # the bits of a sum: at most one for each term
        assert bin(int(value * 2**40)).count("1") <= n + odd


@pytest.mark.parametrize("name", EXAMPLES)
def test_codes(name: str) -> None:
    element, bits = read_element(name), int(name[-1])
    values = element.decode(torch.arange(2**bits, dtype=torch.uint8))
    if name[0] == "u":
        assert values.tolist() == list(magnitudes(bits)) and not element.signed
        return
    half = 2 ** (bits - 1)
    assert values[:half].tolist() == list(magnitudes(bits - 1))
    assert torch.equal(values[half:], -values[:half]) and bool(values.signbit()[half:].all())
    assert element.max == magnitudes(bits - 1)[-1]


@pytest.mark.parametrize("name", ["apot2", "apot9", "uapot1", "apot", "apot33"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(ValueError, match=f"unknown element '{name}'; choose from apotB"):
        read_element(name)


def test_nearer_to_a_normal_distribution_than_powers_alone() -> None:
    """What sums are for (section 2.1): large numbers get values, too."""
    x = torch.randn(1 << 14, generator=torch.Generator().manual_seed(0)).clamp(-3, 3)
    errors = []
    for name in ("apot5", "log5"):
        element = read_element(name)
        step = 3 / element.max
        values = element.decode(element.encode(x / step, torch.round, None, False)) * step
        errors.append(float((values - x).square().mean()))
    assert errors[0] < errors[1] / 4


def test_grain() -> None:
    """Every value is an integer times 2^-grain, and one is odd."""
    for name in (*(f"apot{b}" for b in range(3, 9)), *(f"uapot{b}" for b in range(2, 9))):
        found = bs.parse(f"{name}:tensor:fp32").element
        assert isinstance(found, Codebook) and found.grain is not None
        whole = [value * 2**found.grain for value in found.table]
        assert all(value == int(value) for value in whole)
        assert any(int(value) % 2 for value in whole)
    assert [bs.parse(f"{n}:tensor:fp32").element.grain for n in ("nf4", "log4f1")] == [None, None]
