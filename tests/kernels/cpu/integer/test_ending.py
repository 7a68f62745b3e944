# SPDX-License-Identifier: BSD-3-Clause
"""What float-scaled kernels need to end as shifts do."""

import torch

import blockscale as bs
from blockscale.kernels.cpu.integer.ending import (
    EXACT,
    EXACT_WIDE,
    holds,
    limits,
    scales,
    supports_sums,
    under_one,
    unshifted,
)
from tests.support.integer_oracle import INT8, UINT8, shifts


def test_formats_keep_their_codes():
    for fmt in (INT8, UINT8, "int8:tensor:e8m0/rceil:full:down", "int16:tensor:pow2/ceil"):
        mine, theirs = bs.parse(under_one(fmt)), bs.parse(fmt)
        assert mine.rounding == theirs.rounding and str(mine.scale) == "fp32"
        assert mine.element.limits(mine.wide) == theirs.element.limits(theirs.wide) == limits(fmt)


def test_sums_that_floats_hold():
    one = shifts(1, -3)
    assert supports_sums(EXACT_WIDE, one, INT8) and supports_sums(EXACT_WIDE << 3, one, "")
    assert not supports_sums(EXACT_WIDE + 1, one, INT8)
    assert not supports_sums((EXACT_WIDE + 1) << 3, one, "")
    assert holds(EXACT) == torch.float32 and holds(EXACT + 1) == torch.float64
    for dtype in (torch.float32, torch.float64):
        top = EXACT if dtype == torch.float32 else EXACT_WIDE
        assert torch.tensor(top - 1, dtype=dtype).long() == top - 1
        assert torch.tensor(top + 1, dtype=dtype).long() == top  # and so not beyond
    assert not supports_sums(5, one, "int4:tensor:pow2/floor")  # whose codes are packed


def test_bounds_before_shifts_to_the_left():
    """Without a format the bound is that of what comes out."""
    assert unshifted(5 << 7, shifts(0, -7, -2), "") == 5
    assert unshifted(5, shifts(0, 4), "") == 5 and unshifted(5 << 7, shifts(-7), INT8) == 5 << 7


def test_scales():
    found = scales(shifts(-62, 0, 62))
    assert torch.equal(found.double(), torch.tensor([2.0**62, 1, 2.0**-62]).double())
