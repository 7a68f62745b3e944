# SPDX-License-Identifier: BSD-3-Clause
"""Shifts in onnxruntime round as the arithmetic of integer models does: every mode and distance."""

import pytest
import torch

from blockscale.export.to_onnx.integer_shift import shifted
from blockscale.ops.integer.shifts import shift_right
from tests.export.to_onnx.running import run

ROUNDINGS = ("nearest_even", "nearest_away", "toward_zero", "down", "up", "half_up")
SUMS = torch.tensor(
    [0, 1, -1, 2, 3, -3, 5, -5, 6, -6, 7, 8, 12, -12, 1000, -1001, 2**31 - 1, -(2**31)]
)


@pytest.mark.parametrize("how", ROUNDINGS)
@pytest.mark.parametrize("shift", [0, 1, 2, 5, 31, 40, 60, -1, -7])
def test_shifts(how, shift):
    x, by = SUMS.to(torch.int32), torch.tensor(shift)

    def build(scope, names):
        return shifted(scope, scope.cast(names[0], "INT64"), by, how)

    assert torch.equal(run(build, x), shift_right(x, by.int(), how))


def test_a_shift_for_each_channel():
    x, by = SUMS.to(torch.int32).reshape(3, 6), torch.tensor([[0], [3], [-2]])

    def build(scope, names):
        return shifted(scope, scope.cast(names[0], "INT64"), by, "nearest_even")

    assert torch.equal(run(build, x), shift_right(x, by.int()))
