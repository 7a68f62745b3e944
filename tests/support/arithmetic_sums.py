# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with tests/core/arithmetic/test_sums.py: `code_of`."""

import math
from fractions import Fraction


def code_of(bias: float, step: float, largest: int) -> int:
    """The page's rule in rationals: a quotient in binary64, half to even, then the clamp."""
    if math.isnan(bias):
        return 0
    if math.isinf(bias):
        return int(math.copysign(largest, bias))
    quotient = Fraction(float(Fraction(bias) / Fraction(step)))  # float() of a Fraction is nearest
    return max(min(round(quotient), largest), -largest)
