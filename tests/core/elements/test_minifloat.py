# SPDX-License-Identifier: BSD-3-Clause
"""Minifloats, against ml_dtypes."""

import math
import re

import ml_dtypes
import numpy as np
import pytest
import torch

from blockscale.core.elements import read_element
from blockscale.core.elements.minifloat import EXAMPLES
from blockscale.core.rounding import DETERMINISTIC
from tests.core.elements.points import (
    boundaries,
    encode,
    every_bfloat16,
)
from tests.support.exact import FLT_MAX
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


def exact(name: str, options: frozenset[str]) -> Minifloat | None:
    """The oracle of the element `name`."""
    del options
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


@pytest.mark.parametrize("name", EXAMPLES)
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
