# SPDX-License-Identifier: BSD-3-Clause
"""Products of codes against float64, which holds these sums, and exact rationals at their ends."""

import pytest
import torch
import torch.nn.functional as F

from blockscale.core.pack import grouped_layout, to_stored
from blockscale.ops.integer.products import conv, linear, matmul
from tests.support.integer_oracle import INT8, LIMITS, UINT8, shifts, whole
from tests.support.integer_oracle import ended as exactly
from tests.support.integer_products import SETTINGS

BIG = 2**40  # as if nothing were proven: int64


def expected(acc, shift, zero, fmt):
    low, high = LIMITS[fmt]
    flat = [exactly(int(v), shift, zero, low, high, "nearest_even") for v in acc.flatten()]
    return torch.tensor(flat).reshape(acc.shape)


@pytest.mark.parametrize("largest", [2**24, 2**30, BIG])
@pytest.mark.parametrize("fmt", [INT8, UINT8])
def test_linear(fmt, largest):
    x, w = whole(0, 255, 5, 2, 70, dtype=torch.uint8), whole(-128, 127, 9, 70, dtype=torch.int8)
    bias = whole(-4000, 4000, 9)
    zero = 100 if fmt == UINT8 else 0
    acc = (x.double() - 7) @ w.double().t() + bias
    found = linear(x, w, bias, 7, largest, shifts(9), zero, *LIMITS[fmt], fmt)
    assert torch.equal(found.long(), expected(acc, 9, zero, fmt))
    sums = linear(x, w, None, 7, largest, shifts(0), 0, 0, 0, "")
    assert torch.equal(sums.double(), (x.double() - 7) @ w.double().t())


@pytest.mark.parametrize("largest", [2**24, BIG])
@pytest.mark.parametrize(("dims", "groups", "stride", "padding", "dilation"), SETTINGS)
@pytest.mark.parametrize("transposed", [False, True])
def test_conv(dims, groups, stride, padding, dilation, transposed, largest):
    kernel, c, n = [3, 2, 2][:dims], 4, 8
    x = whole(-128, 127, 2, *[7, 6, 5][:dims], c, dtype=torch.int8)
    shape = [c, n // groups, *kernel] if transposed else [n, c // groups, *kernel]
    dense = whole(-128, 127, *shape, dtype=torch.int8)
    bias = whole(-500, 500, n)
    last = x.double().movedim(-1, 1) - 3
    if transposed:
        run = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[dims - 1]
        more = [1 if s > 1 else 0 for s in stride]
        acc = run(last, dense.double(), bias.double(), stride, padding, more, groups, dilation)
        layout = grouped_layout(groups)
    else:
        run = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
        more = []
        acc = run(last, dense.double(), bias.double(), stride, padding, dilation, groups)
        layout = "channels_last"
    stored = to_stored(dense, layout).contiguous()
    found = conv(
        x, stored, bias, shape, stride, padding, dilation, groups, transposed, more, 3, largest,
        shifts(7), 0, -127, 127, INT8,
    )  # fmt: skip
    assert torch.equal(found.long(), expected(acc.movedim(1, -1), 7, 0, INT8))


@pytest.mark.parametrize("largest", [2**24, BIG])
def test_matmul(largest):
    a, b = whole(0, 255, 3, 5, 6, dtype=torch.uint8), whole(-128, 127, 3, 6, 4, dtype=torch.int8)
    acc = (a.double() - 128) @ (b.double() - 1)
    found = matmul(a, b, 128, 1, largest, shifts(6), 0, -127, 127, INT8)
    assert torch.equal(found.long(), expected(acc, 6, 0, INT8))
