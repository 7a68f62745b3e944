# SPDX-License-Identifier: BSD-3-Clause
"""Products of codes: the reference's integers, up to the largest sums."""

import itertools

import pytest
import torch

from blockscale.kernels.cpu.integer import products
from blockscale.kernels.cpu.integer.shifted import _READY
from blockscale.kernels.registry import unavailable
from blockscale.ops.integer import INTEGER_OPS
from tests.kernels.cpu.integer.equal import equal
from tests.support.integer_oracle import INT8, INT16, LIMITS, UINT8, shifts, whole

pytestmark = pytest.mark.skipif(unavailable("cpu") is not None, reason=str(unavailable("cpu")))
TOP = 2**24


@pytest.mark.some(2)
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
@pytest.mark.parametrize(("rows", "n", "k"), [(1, 1, 1), (5, 33, 70), (70, 64, 256)])
def test_linear(rows, n, k, dtype):
    ends = torch.iinfo(dtype)
    x, w = whole(ends.min, ends.max, rows, k, dtype=dtype), whole(-128, 127, n, k, dtype=torch.int8)
    bias = whole(-(2**20), 2**20, n)
    each = whole(-3, 20, n)
    for x_zero, fmt, b in itertools.product((0, 9), (INT8, UINT8, INT16), (bias, None)):
        zero, (low, high) = 100 if fmt == UINT8 else 0, LIMITS[fmt]
        for bounds in ((low, high), (zero, high), (max(low, -3), 60)):  # ReLU; and others
            equal("integer_linear", x, w, b, x_zero, TOP, each, zero, *bounds, fmt)
        equal("integer_linear", x, w, b, x_zero, TOP, -each.clamp(0, 5), 0, 0, 0, "")


def test_ties_of_the_largest_sums():
    """Sums of 2^24, at every tie of a shift: float32 holds them and rounds once."""
    x = torch.cat([torch.full((300, 1023), 127), torch.arange(300)[:, None] - 150], 1)
    x = x.clamp(-127, 127).to(torch.int8)
    w = torch.full((40, 1024), 127, dtype=torch.int8)
    w[:, 1023] = torch.arange(40) - 20
    bias = torch.full((40,), 2**24 - 127 * 127 * 1023 - 127 * 20, dtype=torch.int32)
    for shift in (1, 9, 10, 16, 17, 20):
        equal("integer_linear", x, w, bias, 0, TOP, shifts(shift), 0, *LIMITS[INT16], INT16)


ENDS = [TOP - 1, TOP, TOP + 1, 2**31 - 1, 2**31, 2**31 + 1]


@pytest.mark.some(2)
@pytest.mark.parametrize("largest", ENDS)
def test_sums_at_every_bound(largest):
    """Sums of exactly `largest` and next to it, odd ones, at ties of some shifts: from 2^24 + 1 on
    float32 rounds them, from 2^31 on int32 cannot hold them."""
    each = largest // 4  # of the products; the bias is what int32 holds of the rest
    steps = torch.arange(4)
    rows = torch.stack([torch.full((4,), 2**15 - 1), torch.full((4,), -(2**15 - 1))])
    x = torch.cat([rows, whole(-(2**15) + 1, 2**15 - 1, 30, 4)]).to(torch.int16)
    w = torch.full((4, 4), each // (2**15 - 1)) - steps[:, None].clamp(max=each // (2**15 - 1))
    bias = (largest - (2**15 - 1) * w.sum(1) - steps).clamp(max=2**31 - 1).to(torch.int32)
    args = (x, w.to(torch.int16), bias, 0, largest)
    reached = (rows.long() @ w.t() + bias).amax()
    assert reached == largest
    for shift in (0, 1, 8, 9, 15, 16, 17, 30, 40, 62, -1, -31):
        for fmt, zero in ((INT8, 0), (UINT8, 77), (INT16, 0), (INT16 + ":nearest_away", 0)):
            low, high = LIMITS[fmt.removesuffix(":nearest_away")]
            equal("integer_linear", *args, shifts(shift), zero, low, high, fmt)
    equal("integer_linear", *args, shifts(0), 0, 0, 0, "")
    equal("integer_linear", *args, shifts(0), 0, -(2**30), 2**30 - 1, "")
    op = INTEGER_OPS["integer_linear"]
    sums = op(*args, shifts(0), 0, 0, 0, "")
    assert sums.dtype == (torch.int32 if largest < 2**31 else torch.int64)
    assert torch.equal(sums.long(), x.long() @ w.t() + bias)
    most = torch.tensor([[2**15 - 1, 1]]).expand(len(x), 2)  # the bias as two products more
    a = torch.cat([x, most], 1).to(torch.int16)
    b = torch.cat([w.t(), (bias // (2**15 - 1))[None], (bias % (2**15 - 1))[None]]).to(torch.int16)
    for shift in (0, 1, 9, 16):
        equal("integer_matmul", a, b, 0, 0, largest, shifts(shift), 0, *LIMITS[INT16], INT16)
    equal("integer_matmul", a, b, 0, 0, largest, shifts(0), 0, 0, 0, "")


@pytest.mark.parametrize("largest", [TOP + 1, 2**31 - 1, 2**31, 2**53])
def test_large_sums_of_eight_bits(largest):
    """Codes of 8 bits whose sums may pass 2^24: shifts of their own for each output."""
    x, w = whole(0, 255, 9, 700, dtype=torch.uint8), whole(-128, 127, 6, 700, dtype=torch.int8)
    bias = whole(2**24, 2**25, 6).to(torch.int32)
    equal("integer_linear", x, w, bias, 3, largest, whole(8, 24, 6), 0, *LIMITS[INT16], INT16)
    a = x.reshape(3, 3, 700)
    equal("integer_matmul", a, w.t().contiguous(), 3, 1, largest, shifts(9), 0, *LIMITS[INT16],
          INT16)  # fmt: skip


def test_products_beyond_2_53():
    """No float holds such sums; int64 does, of 16 bits with zero points on both sides."""
    a = whole(-(2**15), 2**15 - 1, 2, 3, 70, dtype=torch.int16)
    b = whole(-(2**15), 2**15 - 1, 2, 70, 33, dtype=torch.int16)
    for zeros in ((0, 0), (-7, 300), (2**15 - 1, -(2**15))):
        equal("integer_matmul", a, b, *zeros, 2**53 + 1, shifts(22), 0, *LIMITS[INT16], INT16)
        equal("integer_matmul", a, b, *zeros, 2**53 + 1, shifts(0), 0, 0, 0, "")


@pytest.mark.some(4)
@pytest.mark.parametrize("a", [(4, 9), (1, 4, 9), (3, 4, 9), (2, 1, 4, 9), (1, 9)])
@pytest.mark.parametrize("b", [(9, 5), (3, 9, 5), (2, 3, 9, 5), (1, 1, 9, 5)])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("small", [0, 64**3])
def test_batches_of_matrices(a, b, turned, small, monkeypatch):
    """Broadcast, one matrix for all, and rows or columns side by side in memory: a product for each
    matrix, or one of all."""
    monkeypatch.setattr(products, "_SMALL", small)
    left, right = whole(-128, 127, *a, dtype=torch.int8), whole(0, 255, *b, dtype=torch.uint8)
    right = right.mT.contiguous().mT if turned else right
    equal("integer_matmul", left, right, 5, 128, 2**21, shifts(7), 0, *LIMITS[INT8], INT8)


def test_a_long_sum_of_two_tensors_is_cut_into_pieces():
    """Of the largest products of 8 bits: a piece of 2^15 is what int32 holds."""
    k = 2**15 + 300
    a, b = torch.full((1, k), 255, dtype=torch.uint8), torch.full((k, 2), 255, dtype=torch.uint8)
    op = INTEGER_OPS["integer_matmul"]
    found = op(a, b, 0, 0, k * 255 * 255, shifts(0), 0, 0, 0, "")
    assert found.dtype == torch.int64 and found.tolist() == [[k * 255 * 255] * 2]


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("transposed", [False, True])
def test_conv_of_large_sums(transposed, groups):
    x = whole(-(2**15), 2**15 - 1, 2, 5, 4, 8, dtype=torch.int16)
    shape = [8, 8 // groups, 3, 2]
    w = whole(-(2**15), 2**15 - 1, 8, 8 // groups * 6, dtype=torch.int16)
    for fmt in (INT8, INT16, ""):
        ends = (*LIMITS[fmt], fmt) if fmt else (0, 0, "")
        equal("integer_conv", x, w, whole(-99, 99, 8), shape, [1, 2], [1, 0], [1, 1], groups,
              transposed, [0, 0] if transposed else [], 3, 2**37, shifts(17 if fmt else 0), 0,
              *ends)  # fmt: skip


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("transposed", [False, True])
def test_conv(transposed, groups):
    x = whole(-128, 127, 2, 7, 6, 32, dtype=torch.int8)
    shape = [32, 64 // groups, 3, 2] if transposed else [64, 32 // groups, 3, 2]
    w = whole(-128, 127, shape[0] if not transposed else 64, 32 // groups * 6, dtype=torch.int8)
    for stride, padding in (([1, 2], [1, 0]), ([1, 1], [0, 1])):
        for fmt in (INT8, INT16):
            equal("integer_conv", x, w, whole(-99, 99, 64), shape, stride, padding, [1, 1], groups,
                  transposed, [0, 0] if transposed else [], 3, TOP, shifts(8), 0, *LIMITS[fmt],
                  fmt)  # fmt: skip


def test_matmul():
    a, b = whole(-128, 127, 3, 4, 9, dtype=torch.int8), whole(0, 255, 3, 9, 5, dtype=torch.uint8)
    for fmt in (INT8, UINT8, INT16):
        equal("integer_matmul", a, b, 1, 128, TOP, shifts(6), 0, *LIMITS[fmt], fmt)


def test_what_is_kept_is_made_again_when_a_weight_changes():
    op = INTEGER_OPS["integer_linear"]
    x, w = whole(-9, 9, 2, 8, dtype=torch.int8), whole(-9, 9, 3, 8, dtype=torch.int8)
    args = (x, w, None, 0, TOP, shifts(0), 0, -127, 127, INT8)
    before, count = op(*args), len(_READY)
    w.neg_()
    assert torch.equal(op(*args), -before) and len(_READY) == count
