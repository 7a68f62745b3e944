# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with
tests/kernels/cpu/test_quantize.py: `edges`, `FLT_MAX`, `ODD`, ….
"""

import math

import torch
from torch import Tensor

from blockscale.core.parse import parse
from tests.support.cpu_primitives import ELEMENTS

FLT_MAX = torch.finfo(torch.float32).max


ODD = [0.0, -0.0, 2.0**-149, -(2.0**-149), 2.0**-126, FLT_MAX, -FLT_MAX]


WIDE = [f"{sign}int{b}" for sign in ("", "u") for b in range(7, 17)]


SMALL = [element for element in ELEMENTS if element not in WIDE]


def edges(element: str) -> Tensor:
    """Values of the element, midpoints between them, one float32 beside each, and odd ones."""
    of = parse(f"{element}:tensor:fp32").element
    patterns = torch.arange(2**of.bits, dtype=torch.int32)
    patterns = patterns.to(torch.uint8) if of.bits <= 8 else patterns
    values = of.decode(of.from_bits(patterns)).double()
    values = values[values.isfinite()].unique()
    top = values[-1]
    middle = (values[1:] + values[:-1]) / 2
    beyond = torch.tensor([top * 1.03125, top + 0.5, top + 1, top * 1.5, top * 2]).double()
    x = torch.cat([values, middle, beyond, -beyond]).float()
    up = x.nextafter(torch.tensor(math.inf))
    down = x.nextafter(torch.tensor(-math.inf))
    return torch.cat([x, up, down, torch.tensor(ODD)])
