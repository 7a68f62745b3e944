# SPDX-License-Identifier: BSD-3-Clause
"""Every element: all codes, bfloat16 and rounding boundaries, against exact rationals."""

import math
import pickle

import pytest
import torch

from blockscale.core.elements import read_element
from blockscale.core.rounding import DETERMINISTIC
from tests.core.elements.points import (
    EVERY,
    boundaries,
    encode,
    every_bfloat16,
)
from tests.support.oracle_elements import element_of
from tests.support.some import crossed


def codes_of(name: str) -> list[int]:
    """Every code as the user sees it, -2^(bits-1) of integers too."""
    return list(element_of(name, {"full"} if read_element(name).integer else set()).codes)


def key(value: float) -> object:
    """-0 is not +0, NaN is NaN."""
    return "nan" if math.isnan(value) else (value, math.copysign(1, value))


def test_every_bfloat16_is_all_of_them() -> None:
    assert every_bfloat16().numel() == 2**16 - 2**8  # exponent field 255 of both signs is out


@pytest.mark.some(16)
@pytest.mark.parametrize(("name", "mode"), crossed(4, EVERY, DETERMINISTIC))
def test_boundaries_in_exact_rationals(name: str, mode: str) -> None:
    y, element = boundaries(name), element_of(name)
    expected = [element.encode(v, mode) for v in y.double().tolist()]
    assert encode(name, y, mode).tolist() == expected


@pytest.mark.some(16)
@pytest.mark.parametrize(("name", "mode"), crossed(4, EVERY, DETERMINISTIC))
def test_mask_in_exact_rationals(name: str, mode: str) -> None:
    y, element = boundaries(name), element_of(name)
    expected = [math.isfinite(v) and element.holds(v, mode) for v in y.double().tolist()]
    assert read_element(name).in_range(y, DETERMINISTIC[mode], None, False).tolist() == expected


@pytest.mark.parametrize("name", EVERY)
def test_decode_in_exact_rationals(name: str) -> None:
    element, codes = read_element(name), codes_of(name)
    ours = element.decode(torch.tensor(codes).to(element.code_dtype))
    assert ours.dtype == torch.float32
    assert list(map(key, ours.tolist())) == [key(element_of(name).decode(c)) for c in codes]


@pytest.mark.parametrize(("name", "mode"), crossed(4, EVERY, DETERMINISTIC))
def test_a_value_has_its_own_code(name: str, mode: str) -> None:
    element = read_element(name)
    codes = torch.tensor(codes_of(name)).to(element.code_dtype)
    values = element.decode(codes)
    codes = codes[values.isfinite()]
    again = element.encode(values[values.isfinite()], DETERMINISTIC[mode], None, True)
    assert again.dtype == element.code_dtype
    assert torch.equal(again, codes)


@pytest.mark.parametrize("name", EVERY)
def test_facts(name: str) -> None:
    ours, exact = read_element(name), element_of(name)
    positive = [v for v in map(exact.decode, codes_of(name)) if 0 < v < math.inf]
    assert (ours.name, ours.bits, ours.mbits) == (name, exact.bits, exact.mbits)
    assert (ours.max, ours.smallest) == (getattr(exact, "max", max(positive)), min(positive))
    assert ours.limits(False)[1] == max(positive)
    assert (ours.nan_code, ours.fraction_bits) == (exact.nan, exact.fraction_bits)
    assert (ours.signed, ours.smallest_normal) == (exact.signed, exact.smallest_normal)
    assert hash(ours) == hash(read_element.__wrapped__(name))  # a value, made anew
    assert ours == read_element.__wrapped__(name) == pickle.loads(pickle.dumps(ours))


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("name", EVERY)
def test_limits(name: str, wide: bool) -> None:
    ours, exact = read_element(name), element_of(name, {"full"} if wide else set())
    values = [v for v in map(exact.decode, exact.codes) if math.isfinite(v)]
    assert ours.limits(wide) == (min(values), max(values))
    if ours.integer:
        assert values == list(exact.codes)


@pytest.mark.parametrize("name", EVERY)
def test_bit_patterns(name: str) -> None:
    """There and back; no two codes share one."""
    element = read_element(name)
    codes = torch.tensor(codes_of(name)).to(element.code_dtype)
    patterns = element.to_bits(codes)
    assert torch.equal(element.from_bits(patterns), codes)
    assert len(set(patterns.tolist())) == len(codes)
    assert 0 <= int(patterns.min()) <= int(patterns.max()) < 2**element.bits
