# SPDX-License-Identifier: BSD-3-Clause
"""Means of magnitudes are the reference's, whatever the sizes and how many there are."""

import pytest
import torch

from tests.support.cuda_equal import DTYPES, wrong

# numpy, in which the interpreter computes, tells of infinities and NaN
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.slow
def test_sums_of_many_bits() -> None:
    """Means of numbers of all sizes, some of which are less than one in the sum; of long rows."""
    for dtype in DTYPES:
        size = 2.0 ** -torch.randint(0, 13 if dtype == torch.float16 else 40, (2, 4096)).float()
        x = (size * torch.randn(2, 4096)).to(dtype)
        x[1] = x[1].abs().clamp(max=1.0) if dtype != torch.float16 else 1.9375
        for fmt in ("ternary:token:fp32", "binary:token:fp32"):
            assert wrong(x, fmt) == [], (dtype, fmt)


@pytest.mark.slow
def test_least_numbers_above_a_mean() -> None:
    """The largest number of a long row alone makes its mean; others lie about 0.7 of that."""
    for largest in (1.0, 1.9921875):
        x = torch.zeros(1, 2**14)
        x[0, 77], x[0, 1000:1256] = largest, largest * 2.0**-15 * (1 + torch.arange(256) / 128)
        for dtype in DTYPES[:2]:
            assert wrong(x.to(dtype), "ternary:token:fp32") == [], (largest, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("fmt", ["int8:tensor:fp32", "e2m1:token:e4m3", "uint4:channel0:fp16:asym"])
def test_blocks_larger_than_a_program(fmt: str) -> None:
    """Extremes of their parts are merged; the last part is shorter."""
    x = torch.randn(2, 33_001)
    x[1, 33_000] = 9
    assert wrong(x, fmt) == []


@pytest.mark.slow
@pytest.mark.parametrize("fmt", ["int8:channel-1:fp32", "int8:channel1:e8m0/ceil:asym"])
def test_blocks_across_many_rows(fmt: str) -> None:
    assert wrong(torch.randn(3, 20, 30), fmt) == []
    assert wrong(torch.randn(700, 60).t(), fmt) == []
