# SPDX-License-Identifier: BSD-3-Clause
"""The C++ of ops on integers against their references: every type, shift and boundary."""

import itertools

import pytest
import torch

from blockscale.graph.lowering.integers.rules.products import exponential
from blockscale.kernels.registry import supporting, unavailable
from tests.kernels.cpu.integer.equal import equal
from tests.support.integer_oracle import INT8, INT16, LIMITS, UINT8, shifts, whole

pytestmark = pytest.mark.skipif(unavailable("cpu") is not None, reason=str(unavailable("cpu")))
DTYPES = (torch.int8, torch.uint8, torch.int16, torch.int32)
SHIFTS = (-62, -31, -14, -3, 0, 1, 2, 7, 15, 29, 30, 31, 32, 45, 62)


def every(dtype: torch.dtype, n: int = 3000) -> torch.Tensor:
    """All small codes, the ends, and random ones."""
    ends = torch.iinfo(dtype)
    small = torch.arange(max(ends.min, -600), min(ends.max, 600) + 1)
    edge = torch.tensor([ends.min, ends.min + 1, ends.max - 1, ends.max])
    near = 2 ** torch.arange(8, 31) if dtype == torch.int32 else small[:0]
    wide = torch.randint(ends.min, ends.max + 1, (n,))
    return torch.cat([small, edge, near, near - 1, -near, wide]).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rescale(dtype):
    x = every(dtype)
    zeros = (0,) if dtype == torch.int32 else (0, 77)  # sums have none
    for shift, fmt, x_zero in itertools.product(SHIFTS, (INT8, UINT8, INT16), zeros):
        zero = 100 if fmt == UINT8 else 0
        low, high = LIMITS[fmt]
        equal("integer_rescale", x, x_zero, shifts(shift), zero, max(low, -9), high, fmt)


@pytest.mark.parametrize("types", [*itertools.product(DTYPES, DTYPES)])
def test_add(types):
    x, y = (every(dtype)[torch.randperm(len(every(dtype)))][:2500] for dtype in types)
    wide = max(torch.iinfo(dtype).max for dtype in types) + 200
    for left, right, shift, sign in ((0, 3, 2, 1), (5, 0, -4, -1), (0, 0, 20, 1), (9, 2, 31, -1)):
        largest = (wide << left) + (wide << right)
        args = (x, y, 3, -5, left, right, sign, largest, shifts(shift), 7, 0, 255, UINT8)
        if largest < 2**31 or largest >= 2**32:
            equal("integer_add", *args)


@pytest.mark.parametrize("types", [*itertools.product(DTYPES[:3], DTYPES[:3])])
def test_mul(types):
    """Codes at all distances from their zero points, the extreme ones among them; and broadcast."""
    x, y = (every(dtype)[torch.randperm(len(every(dtype)))][:2500] for dtype in types)
    n = min(len(x), len(y))
    x[0], y[0] = (torch.iinfo(dtype).min for dtype in types)
    x[1], y[1] = (torch.iinfo(dtype).max for dtype in types)
    for shift, largest in itertools.product((0, 3, 17, -2, 31, 40), (2**29, 2**31 - 1, 2**34)):
        if int(((x[:n].long() - 3) * (y[:n].long() + 5)).abs().max()) > largest:
            continue
        for fmt, zero in ((UINT8, 7), (INT16, 0)):
            end = (shifts(shift), zero, *LIMITS[fmt], fmt)
            equal("integer_mul", x[:n], y[:n], 3, -5, largest, *end)
            equal("integer_mul", x[:8, None], y[:1], 3, -5, largest, *end)


@pytest.mark.some(4)
@pytest.mark.parametrize("columns", [1, 3, 64, 384, 1000])
@pytest.mark.parametrize("dtype", DTYPES[:3])
def test_norm(dtype, columns):
    ends = torch.iinfo(dtype)
    x = whole(ends.min, ends.max, 40, columns, dtype=dtype)
    x[0], x[1], x[2, 0] = 0, ends.max, ends.min
    x[3, :], x[3, :1] = ends.min, ends.max
    weight, bias = whole(-(2**15), 2**15, columns), whole(-(2**30), 2**30, columns).long() * 64
    for centered, epsilon, w, b in itertools.product(
        (True, False), (0, 1, 2**40), (weight, None), (bias, None)
    ):
        for shift, fmt in ((4, INT8), (20, INT16), (27, UINT8)):
            args = (x, w, b, 5, centered, epsilon, shifts(shift), 0, *LIMITS[fmt], fmt)
            equal("integer_layer_norm", *args)


SIZES = [  # batch, heads, of key, rows, keys, depth, width
    (2, 3, 3, 7, 9, 16, 16), (1, 4, 2, 33, 64, 32, 32), (2, 1, 1, 1, 1, 5, 3),
    (1, 2, 2, 64, 31, 64, 48),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["plain", "causal", "keys", "rows"])
@pytest.mark.parametrize("size", SIZES)
def test_attention(size, kind):
    batch, heads, few, rows, keys, depth, width = size
    for q_type, v_type, step in ((torch.int8, torch.uint8, -14), (torch.uint8, torch.int8, -9),
                                 (torch.int8, torch.int8, -20)):  # fmt: skip
        ends, v_ends = torch.iinfo(q_type), torch.iinfo(v_type)
        q = whole(ends.min, ends.max, batch, rows, heads, depth, dtype=q_type).transpose(1, 2)
        k = whole(ends.min, ends.max, batch, keys, few, depth, dtype=q_type).transpose(1, 2)
        v = whole(v_ends.min, v_ends.max, batch, keys, few, width, dtype=v_type).transpose(1, 2)
        seen = {"keys": (batch, 1, 1, keys), "rows": (batch, heads, rows, keys)}.get(kind)
        mask = None if seen is None else torch.rand(seen) > 0.5
        if mask is not None:
            mask[0] = False  # nothing is seen
        end = (*exponential(step, 0.3, "it"), shifts(9), 0, *LIMITS[INT8], INT8)
        equal("integer_attention", q, k, v, mask, kind == "causal", [3, 0, 120], *end)


def test_what_has_no_kernel():
    """Other roundings, and shifts of each channel: the reference runs those."""
    x = torch.zeros(4, dtype=torch.int8)
    for shift, fmt in ((shifts(1), INT8 + ":down"), (shifts(1, 2, 3, 4), INT8), (shifts(0), "")):
        assert supporting("integer_rescale", "cpu", (), (x, 0, shift, 0, -127, 127, fmt)) is None


def test_add_broadcasts():
    a, b = whole(-127, 127, 4, 1, 9, dtype=torch.int8), whole(-127, 127, 5, 9, dtype=torch.int8)
    equal("integer_add", a, b, 0, 0, 2, 0, 1, 2**20, shifts(1), 0, *LIMITS[INT8], INT8)
