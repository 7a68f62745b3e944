# SPDX-License-Identifier: BSD-3-Clause
"""What the quick way may lose, from the rules of a device that flushes subnormals."""

from fractions import Fraction

import pytest

from blockscale.kernels.webgpu.matmul.factors import Limits, Places, constants_of
from blockscale.kernels.webgpu.spec import float_of

_TINY = Fraction(1, 2**126)


@pytest.mark.parametrize("inner", [1, 100, 4096, 100000])
@pytest.mark.parametrize(
    "limits", [Limits(2.0**8, 2.0**22), Limits(2.0**64, 2.0**-34), Limits(2.0**30, 1.0, 2.0**30)]
)
def test_a_trusted_sum_lost_less_than_it_may(limits: Limits, inner: int) -> None:
    """Each product loses a subnormal factor, product or step at most; 2^-18 of |y| is allowed."""
    left, value, step = (Fraction(each) for each in (limits.left, limits.value, limits.step))
    of_left = _TINY * Fraction(limits.weight)
    of_step = _TINY * left * value
    of_value = _TINY * left * step
    of_product = _TINY * max(step, 1)
    lost = inner * (of_left + of_step + of_value + of_product + _TINY)
    assert lost <= Fraction(float_of(limits.least(inner))) / 2**18


def test_nothing_overflows_within_the_limits() -> None:
    limits = Limits(2.0**8, 2.0**22)
    assert limits.left * limits.value * limits.step * 2.0**40 < 2.0**127
    assert float_of(int(constants_of(limits)["STEP_LIMIT"])) == limits.step


def test_places_by_name() -> None:
    named = Places(5, 4, 3, 2).named("left")
    assert named == {"left_start": 5, "left_batch": 4, "left_row": 3, "left_column": 2}
