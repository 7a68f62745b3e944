# SPDX-License-Identifier: BSD-3-Clause
"""Products of 8 and 16 bits in onnxruntime are exact sums of int32."""

import pytest
import torch
import torch.nn.functional as F

from blockscale.export.to_onnx.integer_products import (
    clipped,
    convolve,
    divide,
    in_bytes,
    larger,
    multiply,
    shifted,
)
from blockscale.ops.integer.shifts import divided as exactly
from blockscale.ops.integer.shifts import shift_right
from tests.export.to_onnx.running import run

DTYPES = (torch.int8, torch.uint8, torch.int16)


def numbers(dtype, *shape):
    limits = torch.iinfo(dtype)
    return torch.randint(limits.min, limits.max + 1, shape, dtype=torch.int32).to(dtype)


@pytest.mark.parametrize("weight", [torch.int8, torch.int16])
@pytest.mark.parametrize(("dtype", "zero"), [(d, 0) for d in DTYPES] + [(torch.uint8, 131)])
def test_matrices(dtype, zero, weight):
    torch.manual_seed(0)
    x, w = numbers(dtype, 2, 3, 40), numbers(weight, 40, 7)
    found = run(lambda scope, names: multiply(scope, names[0], dtype, zero, w), x)
    assert torch.equal(found, (x.int() - zero) @ w.int())


def test_codes_of_sixteen_bits_that_need_int32():
    x, w = torch.tensor([[65535, 0, 256, 255]], dtype=torch.int32), numbers(torch.int8, 4, 2)
    found = run(lambda scope, names: multiply(scope, names[0], torch.int32, 0, w), x)
    assert torch.equal(found, x @ w.int())
    with pytest.raises(ValueError, match="zero point 7 have no integer product"):
        run(lambda scope, names: multiply(scope, names[0], torch.int32, 7, w), x)


@pytest.mark.parametrize(("dtype", "zero"), [(torch.int8, 0), (torch.uint8, 9), (torch.int16, 0)])
@pytest.mark.parametrize("around", [[0, 0, 0, 0], [1, 0, 2, 1]])
def test_convolutions(dtype, zero, around):
    torch.manual_seed(0)
    x, w = numbers(dtype, 2, 4, 9, 8), numbers(torch.int8, 6, 2, 3, 2)
    settings = {"pads": around, "strides": [2, 1], "dilations": [1, 2], "group": 2}

    def build(scope, names):
        return convolve(scope, names[0], dtype, zero, w, **settings)

    found = run(build, x)
    padded = F.pad(x.double() - zero, [around[i] for i in (1, 3, 0, 2)])  # ends after begins there
    plain = F.conv2d(padded, w.double(), None, (2, 1), 0, (1, 2), 2)
    assert torch.equal(found.double(), plain)


def test_what_can_be_written_in_bytes():
    byte, wide = torch.zeros(2, 2, dtype=torch.int8), torch.zeros(2, 2, dtype=torch.int32)
    assert in_bytes(torch.uint8, 3, byte) and in_bytes(torch.int16, 0, byte)
    assert not in_bytes(torch.int16, 3, byte) and not in_bytes(torch.int8, 0, wide)


# Shifts in onnxruntime round as the arithmetic of integer models does: every mode and distance.


ROUNDINGS = ("nearest_even", "nearest_away", "toward_zero", "down", "up", "half_up")
SUMS = torch.tensor(
    [0, 1, -1, 2, 3, -3, 5, -5, 6, -6, 7, 8, 12, -12, 1000, -1001, 2**31 - 1, -(2**31)]
)


@pytest.mark.some(4)
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


@pytest.mark.some(4)
@pytest.mark.parametrize("how", ROUNDINGS)
@pytest.mark.parametrize("by", [1, 3, 6, 49])
def test_quotients(how, by):
    x, divisor = torch.arange(-150, 150), torch.tensor([by])
    found = run(lambda scope, names: divide(scope, names[0], divisor, how), x)
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
