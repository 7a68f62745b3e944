# SPDX-License-Identifier: BSD-3-Clause
"""Ops of single codes against the graph's own codes."""

import pytest
import torch

from tests.support.c_handmade import handmade
from tests.support.c_running import check, needs_gcc, run
from tests.support.integer_oracle import INT8, UINT8, shifts, whole

pytestmark = [needs_gcc, pytest.mark.slow]


def test_elementwise(tmp_path):
    a, b = whole(-128, 127, 3, 1, 5, dtype=torch.int8), whole(0, 255, 4, 5, dtype=torch.uint8)
    i = torch.tensor([[0, 6], [3, 3]])
    each = torch.tensor([0, 3, -2, 9, 40], dtype=torch.int32)
    calls = []
    for largest in (2**24, 2**40):
        for sign in (1, -1):
            args = ["a", "b", 2, 128, 3, 0, sign, largest]
            calls += [("add", [*args, each, 1, -127, 127, INT8])]
        calls += [
            ("mul", ["a", "b", 2, 128, largest, shifts(4), 100, 0, 255, UINT8]),
            ("mul", ["a", "b", 2, 128, largest, shifts(-3), 0, 0, 0, ""]),
        ]
    calls += [
        ("rescale", ["a", 3, each, 9, 9, 200, UINT8]),
        ("look_up", ["a", torch.randperm(256).to(torch.uint8)]),
        ("look_up", ["b", torch.randperm(256).to(torch.int16)]),
        ("embedding", [whole(-128, 127, 7, 3, dtype=torch.int8), "i"]),
    ]
    path = check(handmade({"a": a, "b": b, "i": i}, calls), tmp_path, (a, b, i))
    outside = torch.tensor([[0, 7], [3, 3]])
    with pytest.raises(AssertionError, match="exit status 3"):  # of no row
        run(path, [(a, b, outside)])
