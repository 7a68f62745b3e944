# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with
tests/core/test_pack.py: `NAMES`, `random_codes`, `SHAPES`.
"""

import torch
from torch import Tensor

from blockscale.core.elements import read_element

# Every width from 1 to 16, signed, unsigned and as bit patterns.
NAMES = [f"int{b}" for b in range(2, 17)] + [f"uint{b}" for b in range(1, 17)]


SHAPES = [(), (0,), (1,), (2,), (7,), (8,), (33,), (3, 5), (2, 0), (0, 4), (2, 3, 11)]


def random_codes(name: str, shape: tuple[int, ...]) -> Tensor:
    """Codes of the whole two's complement or pattern range."""
    element = read_element(name)
    if name == "binary":
        return (torch.randint(0, 2, shape) * 2 - 1).to(torch.int8)
    low = -(2 ** (element.bits - 1)) if name.startswith("int") else 0
    low, high = (-1, 2) if name == "ternary" else (low, low + 2**element.bits)
    return torch.randint(low, high, shape).to(element.code_dtype)
