# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with tests/export/test_c.py: `small`."""

import torch

from tests.support.c_handmade import handmade
from tests.support.integer_oracle import INT8, shifts, whole


def small(groups=1):
    """A graph of a convolution, a pool and a linear layer, by hand, and its input."""
    x = whole(-128, 127, 1, 5, 5, 2, dtype=torch.int8)
    cells = whole(-128, 127, 4, 18 // groups, dtype=torch.int8)
    each = torch.tensor([5, 6, 0, 9], dtype=torch.int32)
    end = [0, -100, 127, INT8]
    calls = [
        ("conv", ["x", cells, whole(-99, 99, 4), [4, 2 // groups, 3, 3], [1, 1], [1, 1], [1, 1],
                  groups, False, [], 3, 2**24, each, *end]),
        (torch.ops.aten.permute.default, ["@0", [0, 3, 1, 2]]),
        ("max_pool", ["@1", [2, 2], [2, 2], [0, 0], [1, 1], False]),
        (torch.ops.aten.reshape.default, ["@2", [1, 16]]),
        ("linear", ["@3", whole(-128, 127, 3, 16, dtype=torch.int8), None, 0, 2**40,
                    shifts(0), 0, 0, 0, ""]),
    ]  # fmt: skip
    return handmade({"x": x}, calls), x
