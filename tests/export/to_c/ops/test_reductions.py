# SPDX-License-Identifier: BSD-3-Clause
"""Pools and sums against the graph's own codes."""

import pytest
import torch

from tests.support.c_handmade import handmade
from tests.support.c_running import SANITIZED, check, needs_gcc
from tests.support.integer_oracle import INT8, shifts, whole

pytestmark = [needs_gcc, pytest.mark.slow]


def test_reductions(tmp_path):
    inputs = {f"x{d}": whole(0, 255, 2, 3, *[6] * d, dtype=torch.uint8) for d in (1, 2, 3)}
    calls = []
    for d in (1, 2, 3):
        x, kernel = f"x{d}", [3, 2, 3][:d]
        calls.append(("max_pool", [x, [3] * d, [2] * d, [1] * d, [1] * d, True]))
        for divisor, shift in ((1, 3), (9, 3), (9, -2), (6, 0)):
            calls.append(("sum_pool", [x, kernel, [2, 1, 2][:d], [1, 1, 0][:d], 100, 2**30, divisor,
                                       shifts(shift), 0, -127, 127, INT8]))  # fmt: skip
        end = [5, 2**20, 21, shifts(-3), 0, -127, 127, INT8]
        calls.append(("sum_over", [x, [1, 2], True, *end]))
        calls.append(("sum_over", [x, [-1], False, 5, 2**20, 1, shifts(0), 0, 0, 0, ""]))
    check(handmade(inputs, calls), tmp_path, tuple(inputs.values()), flags=SANITIZED)
