# SPDX-License-Identifier: BSD-3-Clause
"""Where rounding can go wrong: the inputs that the tests of elements share."""

import math
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from blockscale.core.elements import FAMILIES, read_element
from blockscale.core.rounding import DETERMINISTIC
from tests.support.exact import FLT_MAX
from tests.support.oracle_elements import element_of

EVERY = [name for family in FAMILIES for name in family.EXAMPLES]


def encode(name: str, y: Tensor, mode: str = "nearest_even", wide: bool = False) -> Tensor:
    return read_element(name).encode(y, DETERMINISTIC[mode], None, wide)


def grid(name: str) -> list[float]:
    """The values from 0 up; of integers those around powers of two and the ends."""
    element = element_of(name)
    top = getattr(element, "qmax", None)
    if top is None:
        values = {element.decode(code) for code in element.codes}
        return sorted(v for v in values if 0 <= v < math.inf)  # NaN is not
    near = {2**k + d for k in range(top.bit_length() + 1) for d in (-2, -1, 0, 1, 2)} | {0}
    return sorted(float(v) for v in near if 0 <= v <= top + 1)


def boundaries(name: str) -> Tensor:
    """Where rounding can go wrong: the grid, midpoints, one float32 beside each, the ends."""
    values = grid(name)
    values += [(a + b) / 2 for a, b in pairwise(values)]
    values += [values[-1] * 2, max(grid(name)) * 1.0625, 0.75, FLT_MAX, 2.0**-126]
    near = np.array([v for v in values if v < 2.0**128], np.float32)
    with np.errstate(over="ignore"):  # what follows FLT_MAX is infinity
        sides = [np.nextafter(near, np.float32(side)) for side in (-np.inf, np.inf)]
    near = np.concatenate([near, *sides, np.float32([0.0, 2.0**-149, np.inf])])
    return torch.from_numpy(np.concatenate([near, -near, np.float32([np.nan])]))


def every_bfloat16() -> Tensor:
    x = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    return x[x.isfinite()]
