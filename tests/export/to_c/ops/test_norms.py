# SPDX-License-Identifier: BSD-3-Clause
"""Softmax, attention and norms against the graph's own codes."""

import pytest
import torch

from blockscale.graph.lowering.integers.rules.products import exponential
from tests.support.c_handmade import handmade
from tests.support.c_running import SANITIZED, check, needs_gcc
from tests.support.integer_oracle import INT8, shifts, whole

pytestmark = [needs_gcc, pytest.mark.slow]


def test_softmax_and_attention(tmp_path):
    x = whole(-127, 127, 5, 33, dtype=torch.int8)
    q, k, v = (whole(-127, 127, 2, n, 9, 8, dtype=torch.int8) for n in (4, 2, 2))
    seen = torch.rand(2, 1, 9, 9) > 0.3
    seen[0, 0, 3] = False
    calls = []
    for step in (-7, -4, -1):
        factor, right, table = exponential(step, 1.0, "it")
        given = [factor, right, table, 8, 0, 0, 255, "uint8:tensor:pow2/nearest"]
        calls.append(("softmax", ["x", *given]))
    factor, right, table = exponential(-12, 0.25, "it")
    end = [[1, -2, 3], factor, right, table, shifts(8), 0, -127, 127, INT8]
    for mask, causal in ((None, True), (None, False), ("seen", False)):
        calls.append(("attention", ["q", "k", "v", mask, causal, *end]))
    inputs = {"x": x, "q": q, "k": k, "v": v, "seen": seen}
    check(handmade(inputs, calls), tmp_path, tuple(inputs.values()), flags=SANITIZED)


def test_layer_norm(tmp_path):
    x = whole(-32767, 32767, 20, 64, dtype=torch.int16)
    x[0], x[1] = 0, 32767
    w, b = (torch.randn(64) * 2**12).round().int(), (torch.randn(64) * 2.0**27).round().long()
    wide = "int16:tensor:pow2/nearest"
    calls = [
        ("layer_norm", ["x", *both, 5, centered, 3 * 64 * 64, shifts(16), 0, -32767, 32767, wide])
        for centered in (True, False) for both in ((w, b), (None, None))
    ]  # fmt: skip
    check(handmade({"x": x}, calls), tmp_path, (x,), flags=SANITIZED)
