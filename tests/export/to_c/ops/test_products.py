# SPDX-License-Identifier: BSD-3-Clause
"""Products against the graph's own codes: sizes, groups, transposed ones, both accumulators."""

import pytest
import torch

from blockscale.core.pack import grouped_layout, to_stored
from tests.support.c_handmade import handmade
from tests.support.c_running import SANITIZED, check, needs_gcc
from tests.support.integer_oracle import INT8, shifts, whole
from tests.support.integer_products import SETTINGS

pytestmark = [needs_gcc, pytest.mark.slow]


def of(setting, transposed, largest):
    dims, groups, stride, padding, dilation = setting
    kernel, c, n = [3, 2, 2][:dims], 4, 8
    shape = [c, n // groups, *kernel] if transposed else [n, c // groups, *kernel]
    dense = whole(-128, 127, *shape, dtype=torch.int8)
    more = [1 if s > 1 else 0 for s in stride] if transposed else []
    layout = grouped_layout(groups) if transposed else "channels_last"
    stored, bias = to_stored(dense, layout).contiguous(), whole(-500, 500, n)
    end = (3, largest, torch.arange(4, 12, dtype=torch.int32), 0, -127, 127, INT8)
    return [f"x{dims}", stored, bias, shape, stride, padding, dilation, groups, transposed,
            more, *end]  # fmt: skip


def test_conv(tmp_path):
    inputs = {f"x{d}": whole(-128, 127, 2, *[7, 6, 5][:d], 4, dtype=torch.int8) for d in (1, 2, 3)}
    calls = [("conv", of(s, turned, 2**24)) for s in SETTINGS for turned in (False, True)]
    calls.append(("conv", of(SETTINGS[1], True, 2**40)))
    check(handmade(inputs, calls), tmp_path, tuple(inputs.values()), flags=SANITIZED)


def test_linear_and_matmul(tmp_path):
    x, w = whole(0, 255, 5, 2, 70, dtype=torch.uint8), whole(-128, 127, 9, 70, dtype=torch.int8)
    a, b = whole(0, 255, 3, 5, 6, dtype=torch.uint8), whole(-128, 127, 3, 6, 4, dtype=torch.int8)
    calls = []
    for largest in (2**24, 2**40):
        end = [largest, shifts(9), 0, -127, 127, INT8]
        calls += [
            ("linear", ["x", w, whole(-4000, 4000, 9), 7, *end]),
            ("linear", ["x", w, None, 7, largest, shifts(0), 0, 0, 0, ""]),
            ("matmul", ["a", "b", 128, 1, *end]),
        ]
    inputs = {"x": x, "a": a, "b": b}
    check(handmade(inputs, calls), tmp_path, tuple(inputs.values()), flags=SANITIZED)
