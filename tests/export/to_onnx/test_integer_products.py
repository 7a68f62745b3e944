# SPDX-License-Identifier: BSD-3-Clause
"""Products of 8 and 16 bits in onnxruntime are exact sums of int32."""

import pytest
import torch
import torch.nn.functional as F

from blockscale.export.to_onnx.integer_products import convolved, in_bytes, multiplied
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
    found = run(lambda scope, names: multiplied(scope, names[0], dtype, zero, w), x)
    assert torch.equal(found, (x.int() - zero) @ w.int())


def test_codes_of_sixteen_bits_that_need_int32():
    x, w = torch.tensor([[65535, 0, 256, 255]], dtype=torch.int32), numbers(torch.int8, 4, 2)
    found = run(lambda scope, names: multiplied(scope, names[0], torch.int32, 0, w), x)
    assert torch.equal(found, x @ w.int())
    with pytest.raises(ValueError, match="zero point 7 have no integer product"):
        run(lambda scope, names: multiplied(scope, names[0], torch.int32, 7, w), x)


@pytest.mark.parametrize(("dtype", "zero"), [(torch.int8, 0), (torch.uint8, 9), (torch.int16, 0)])
@pytest.mark.parametrize("around", [[0, 0, 0, 0], [1, 0, 2, 1]])
def test_convolutions(dtype, zero, around):
    torch.manual_seed(0)
    x, w = numbers(dtype, 2, 4, 9, 8), numbers(torch.int8, 6, 2, 3, 2)
    settings = {"pads": around, "strides": [2, 1], "dilations": [1, 2], "group": 2}

    def build(scope, names):
        return convolved(scope, names[0], dtype, zero, w, **settings)

    found = run(build, x)
    padded = F.pad(x.double() - zero, [around[i] for i in (1, 3, 0, 2)])  # ends after begins there
    plain = F.conv2d(padded, w.double(), None, (2, 1), 0, (1, 2), 2)
    assert torch.equal(found.double(), plain)


def test_what_can_be_written_in_bytes():
    byte, wide = torch.zeros(2, 2, dtype=torch.int8), torch.zeros(2, 2, dtype=torch.int32)
    assert in_bytes(torch.uint8, 3, byte) and in_bytes(torch.int16, 0, byte)
    assert not in_bytes(torch.int16, 3, byte) and not in_bytes(torch.int8, 0, wide)
