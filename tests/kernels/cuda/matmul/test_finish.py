# SPDX-License-Identifier: BSD-3-Clause
"""From sums to the result: partial sums, factors, bias and rounding, against float64."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from blockscale.kernels.cuda.matmul.finish import Ends, add_up, result
from blockscale.kernels.cuda.matmul.operands import OutputFactors
from tests.support.cuda_equal import DEVICE, DTYPES


def whole(*shape: int) -> torch.Tensor:
    """Small whole numbers, whose sums and products are exact."""
    return torch.randint(-8, 9, shape, device=DEVICE).float()


@pytest.mark.some(4)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(("rows", "n"), [(1, 1), (2, 37), (3, 1500)])
def test_partial_sums(dtype: torch.dtype, count: int, rows: int, n: int) -> None:
    """Every factor and bias there or not, one factor for all outputs or one each."""
    parts, row, bias = whole(count, rows, n), whole(rows), whole(n)
    for x_row in (row, None):
        for its_bias in (bias, bias.to(dtype), None):
            for factors in (OutputFactors(None, 0), OutputFactors(whole(n), 1),
                            OutputFactors(whole(1), 0)):  # fmt: skip
                y = torch.full((rows, n), 77.0, device=DEVICE, dtype=dtype)
                assert add_up(parts, count, Ends(x_row, its_bias), y, factors) is y
                expected = parts.double().sum(0)
                if factors.values is not None:
                    expected = expected * factors.values.double()
                if x_row is not None:
                    expected = expected * x_row.double()[:, None]
                if its_bias is not None:
                    expected = expected + its_bias.double()
                assert torch.equal(y, expected.to(dtype))


def test_some_columns_of_a_wider_result() -> None:
    y = torch.full((3, 20), 77.0, device=DEVICE)
    parts = whole(2, 3, 6)
    add_up(parts, 2, Ends(None, None), y[:, 4:10])
    assert torch.equal(y[:, 4:10], parts.sum(0))
    assert bool((y[:, :4] == 77).all() and (y[:, 10:] == 77).all())


def test_partial_sums_are_added_from_the_last() -> None:
    """The order is fixed, and shows: 2^24 + 1 + 1 is 2^24 or 2^24 + 2 in float32."""
    parts = torch.tensor([1.0, 1.0, 2.0**24], device=DEVICE).reshape(3, 1, 1)
    for order, expected in ((parts, 2.0**24), (parts.flip(0), 2.0**24 + 2)):
        y = torch.empty(1, 1, device=DEVICE)
        assert add_up(order.contiguous(), 3, Ends(None, None), y).item() == expected


def test_the_memory_of_a_product() -> None:
    x = torch.zeros(3, 8, device=DEVICE)
    alone, divided = result(x, 5, 1, torch.float16), result(x, 5, 4, torch.float16)
    assert alone.whole
    assert alone.finish(Ends(None, torch.ones(5))) is alone.y  # whoever wrote it finished it
    assert not divided.whole
    assert (divided.sums.shape, divided.sums.dtype) == ((4, 3, 5), torch.float32)
    divided.sums.fill_(0.25)
    assert torch.equal(divided.finish(Ends(None, None)), torch.ones_like(divided.y))
