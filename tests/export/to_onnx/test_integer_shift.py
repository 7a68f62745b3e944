# SPDX-License-Identifier: BSD-3-Clause
"""Shifts in onnxruntime round as the arithmetic of integer models does: every mode and distance."""

import pytest
import torch

from blockscale.export.to_onnx.integer_shift import clipped, divided, larger, shifted
from blockscale.ops.integer.shifts import divided as exactly
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


@pytest.mark.parametrize("how", ROUNDINGS)
def test_sums_of_sixty_four_bits(how):
    x = torch.tensor([2**61 + 3, -(2**61), 3 * 2**40, -(2**35) - 1, 2**62 - 1, 5])
    for distance in (1, 20, 36, 62):
        by = torch.tensor(distance)
        found = run(lambda scope, names, by=by: shifted(scope, names[0], by, how), x)
        assert torch.equal(found, shift_right(x, by.int(), how))


@pytest.mark.parametrize("how", ROUNDINGS)
@pytest.mark.parametrize("by", [1, 3, 6, 49])
def test_quotients(how, by):
    x, divisor = torch.arange(-150, 150), torch.tensor([by])
    found = run(lambda scope, names: divided(scope, names[0], divisor, how), x)
    assert torch.equal(found, exactly(x, divisor, how))


def test_comparisons_of_sixty_four_bits():
    """onnxruntime's Clip, Max and Min of int64 see 32 bits, where the processor has AVX2."""
    ends = [2**31 + 16, 2**31, 2**32, -(2**31) - 1, -(2**32) + 7, 2**40 + 9, -(2**40), 5, -5]
    x = torch.tensor(ends * 4)
    for low, high in ((0, 255), (-127, 127), (-(2**33), 2**34)):
        found = run(lambda scope, names, a=low, b=high: clipped(scope, names[0], a, b), x)
        assert torch.equal(found, x.clamp(low, high))
    y = x.flip(0)
    assert torch.equal(run(lambda scope, names: larger(scope, *names), x, y), torch.maximum(x, y))
