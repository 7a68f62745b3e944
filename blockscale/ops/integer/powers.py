# SPDX-License-Identifier: BSD-3-Clause
"""Products as shifts and additions: what a weight that is a power of two, or a sum of a few, costs.

Every integer is a sum of signed powers of two; of all such sums the non-adjacent form has the
fewest terms (Reitwiesner 1960, "Binary arithmetic", section 8). A product with a weight of one term
is a shift, one of t terms t shifts and t - 1 additions.
"""

from functools import cache

import torch
from torch import Tensor


def digits(weight: Tensor) -> list[tuple[Tensor, int]]:
    """weight [...] integers below 2^61 -> (digits [...] of -1, 0 and 1, shift) with weight =
    sum of digits << shift: the non-adjacent form."""
    rest, shift, results = weight.to(torch.int64), 0, []
    while bool(rest.any()):
        digit = torch.where(rest & 1 == 1, 2 - (rest & 3), 0)
        if bool(digit.any()):
            results.append((digit.to(torch.int8), shift))
        rest, shift = (rest - digit) >> 1, shift + 1
    return results


def terms(weight: Tensor) -> Tensor:
    """weight [...] integers -> how many signed powers of two each is the sum of, [...] int64."""
    if weight.dtype in (torch.int8, torch.int16):  # far fewer numbers than weights
        least = torch.iinfo(weight.dtype).min
        return _of_every(weight.dtype)[weight.to(torch.int64) - least]
    return _counted(weight)


@cache
def _of_every(dtype: torch.dtype) -> Tensor:
    """The terms of each number of a dtype, from the least on."""
    info = torch.iinfo(dtype)
    return _counted(torch.arange(info.min, info.max + 1))


def _counted(weight: Tensor) -> Tensor:
    count = torch.zeros(weight.shape, dtype=torch.int64)
    for digit, _ in digits(weight):
        count += digit.abs()
    return count
