# SPDX-License-Identifier: BSD-3-Clause
"""Minifloats, with and without a sign, against ml_dtypes and the exact oracle."""

import math
import re
from dataclasses import dataclass
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch

from blockscale.core.elements import read_element
from blockscale.core.elements.minifloat import SIGNED, UNSIGNED
from blockscale.core.rounding import DETERMINISTIC
from tests.core.elements.points import (
    boundaries,
    encode,
    every_bfloat16,
)
from tests.support.exact import FLT_MAX, rounded
from tests.support.oracle_elements import Minifloat, element_of

# ml_dtypes' plain float8_e4m3 and float8_e3m4 keep an infinity and NaN as IEEE 754 does.
PEERS = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
    "e4m3r8": ml_dtypes.float8_e4m3,
    "e3m4r16": ml_dtypes.float8_e3m4,
}


@dataclass(frozen=True)
class Unsigned(Minifloat):
    """The magnitudes of a minifloat; what is negative becomes 0."""

    signed = False

    @property
    def bits(self) -> int:
        return self.x + self.y

    def decode(self, code: int) -> float:
        return float(self.magnitude(code)) if code <= self.last else math.nan

    def encode(self, y: float, mode: str, _zero: int = 0, u: Fraction | None = None) -> int:
        return super().encode(abs(y) if y >= 0 or math.isnan(y) else 0.0, mode, 0, u)

    def holds(self, y: float, mode: str, _zero: int = 0) -> bool:
        least = self.magnitude(1)
        return super().holds(y, mode) and rounded(Fraction(y) / least, mode) >= 0


def exact(name: str, options: frozenset[str]) -> Minifloat | None:
    """The oracle of the element `name`."""
    del options
    unsigned = re.fullmatch(r"ue(\d+)m(\d+)(?:r(\d+))?", name)
    if unsigned is not None:
        x, y = int(unsigned[1]), int(unsigned[2])
        return Unsigned(x, y, 1 if unsigned[3] is None else int(unsigned[3]), 2 ** (x - 1) - 1)
    spelled = re.fullmatch(r"e(\d+)m(\d+)(?:r(\d+))?", name)
    if spelled is None:
        return None
    x, y = int(spelled[1]), int(spelled[2])
    reserved = {"e4m3": 1, "e5m2": 4}.get(name, 0) if spelled[3] is None else int(spelled[3])
    return Minifloat(x, y, reserved, 2 ** (x - 1) - 1)


@pytest.mark.parametrize("name", PEERS)
def test_every_code_means_what_ml_dtypes_says(name: str) -> None:
    codes = np.arange(2 ** read_element(name).bits, dtype=np.uint8)
    theirs = codes.view(PEERS[name]).astype(np.float32)
    if name != "e5m2":  # we read infinity only there
        theirs = np.where(np.isinf(theirs), np.nan, theirs)
    ours = read_element(name).decode(torch.from_numpy(codes)).numpy()
    np.testing.assert_array_equal(ours, theirs)
    number = ~np.isnan(theirs)
    np.testing.assert_array_equal(np.signbit(ours)[number], np.signbit(theirs)[number])


@pytest.mark.parametrize("points", ["bfloat16", "boundaries"])
@pytest.mark.parametrize("name", PEERS)
def test_nearest_even_is_ml_dtypes_cast(name: str, points: str) -> None:
    y = every_bfloat16() if points == "bfloat16" else boundaries(name)
    y = y[~y.isnan()]
    top = float(ml_dtypes.finfo(PEERS[name]).max)
    # ml_dtypes overflows to NaN or infinity for 8 bits; ours saturates, in every mode.
    theirs = y.clamp(-top, top).numpy().astype(PEERS[name]).view(np.uint8)
    np.testing.assert_array_equal(encode(name, y).numpy(), theirs)


@pytest.mark.parametrize("name", SIGNED)
def test_nan_saturation_and_sign_of_zero(name: str) -> None:
    element, exact = read_element(name), element_of(name)
    sign = 2 ** (element.bits - 1)
    y = torch.tensor([math.nan, -math.nan, math.inf, -math.inf, FLT_MAX, -FLT_MAX, 0.0, -0.0])
    nan = exact.nan or 0
    expected = [nan, nan, exact.last, exact.last + sign, exact.last, exact.last + sign, 0, sign]
    for mode in DETERMINISTIC:
        assert encode(name, y, mode).tolist() == expected


@pytest.mark.parametrize(("name", "there"), [("e2m3r23", True), ("e2m3r24", False)])
def test_one_normal_number_must_remain(name: str, there: bool) -> None:
    """r23 leaves e2m3 the codes 0 ... 8; 8 is 1.0, the smallest normal number."""
    if there:
        assert read_element(name).max == 1.0
    else:
        with pytest.raises(ValueError, match=f"unknown element '{name}'"):
            read_element(name)


def test_ue4m3_is_e4m3_without_its_sign() -> None:
    """PTX ISA, ue4m3: the same numbers, NaN at the top; ml_dtypes has the one with a sign."""
    theirs = np.arange(128, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    element = read_element("ue4m3")
    ours = element.decode(torch.arange(128, dtype=torch.uint8)).numpy()
    np.testing.assert_array_equal(ours, theirs)
    y = every_bfloat16().abs().clamp(max=448.0)
    cast = y.numpy().astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    np.testing.assert_array_equal(encode("ue4m3", y).numpy(), cast)


def test_ue5m3_has_the_largest_number_and_the_nan_of_its_producers() -> None:
    """AutoRound's FLOAT8_UE5M3_MAX, and its code of NaN."""
    element = read_element("ue5m3")
    assert (element.bits, element.max, element.nan_code) == (8, 114688.0, 255)
    assert (element.smallest, element.smallest_normal) == (2.0**-17, 2.0**-14)
    assert element.decode(torch.tensor([0xFE, 0x78, 0x01, 0x00], dtype=torch.uint8)).tolist() == [
        114688.0, 1.0, 2.0**-17, 0.0
    ]  # fmt: skip


def test_the_values_of_ue5m3_are_those_of_float16_cut_short() -> None:
    """float16 has the same exponents: a code is the upper 8 of its 15 bits, NaN and infinity
    apart."""
    halves = (np.arange(256, dtype=np.uint16) << 7).view(np.float16).astype(np.float32)
    ours = read_element("ue5m3").decode(torch.arange(256, dtype=torch.uint8)).numpy()
    np.testing.assert_array_equal(ours[:248], halves[:248])
    np.testing.assert_array_equal(ours[248:255], (1 + np.arange(7) / 8) * np.float32(2.0**16))


@pytest.mark.parametrize("name", UNSIGNED)
def test_nan_saturation_and_what_is_negative(name: str) -> None:
    exact = element_of(name)
    y = torch.tensor([math.nan, math.inf, -math.inf, FLT_MAX, -FLT_MAX, 0.0, -0.0])
    expected = [exact.nan or 0, exact.last, 0, exact.last, 0, 0, 0]
    for mode in DETERMINISTIC:
        assert encode(name, y, mode).tolist() == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ue5m3", "ue4m4", "ue1m2", "ue2m2r3"])
def test_codes_and_mask_at_every_boundary(name: str) -> None:
    element, exact = read_element(name), element_of(name)
    y = boundaries(name)
    finite = y[y.isfinite()]
    for mode, rounding in DETERMINISTIC.items():
        assert encode(name, y, mode).tolist() == [exact.encode(v, mode) for v in y.tolist()]
        mask = element.in_range(finite, rounding, None, False)
        assert mask.tolist() == [exact.holds(v, mode) for v in finite.tolist()]


@pytest.mark.parametrize("name", ["ue8m0", "ue1m1", "ue5m4", "ue0m3", "ue5m3r248", "uE5M3"])
def test_what_is_none(name: str) -> None:
    with pytest.raises(ValueError, match="ue5m3, ue4m3 and any ueXmY"):
        read_element(name)
