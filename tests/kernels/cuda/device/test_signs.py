# SPDX-License-Identifier: BSD-3-Clause
"""Signs are found by comparing with a block's bound: beside it, and beside quotients of -0."""

import pytest
import torch

from tests.support.cuda_equal import DTYPES, wrong

# numpy, in which the interpreter computes, tells of infinities and NaN
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.some(5)
@pytest.mark.parametrize("fmt", ["ternary:token:fp32", "ternary:token:e8m0/floor"])
def test_means_as_scale(fmt: str) -> None:
    """A row of few sizes: so its mean and the threshold are not far from what is in it."""
    for dtype in DTYPES:
        size = torch.tensor([1.0, 1.4, 0.7, 0.5, 2.0])[torch.randint(5, (12, 64))]
        assert wrong((size * torch.randn(12, 64).sign()).to(dtype), fmt) == [], dtype


@pytest.mark.some(5)
@pytest.mark.parametrize("fmt", ["binary:token:fp32", "binary:token:pow2/floor"])
def test_quotients_that_are_minus_zero(fmt: str) -> None:
    """Negative numbers beside 2^-150 steps, which is where their quotient is -0: its sign is +1."""
    rows = []
    for power in (0, 1, 2, 17, 24, 25, 60):
        x = torch.full((2, 64), 2.0**power) * torch.tensor([[1.0], [1.5]])
        x[:, 1:9] = -torch.arange(8.0) * 2.0**-149
        x[:, 9:25] = -(2.0 ** (torch.arange(16.0, dtype=torch.float64) + power - 158)).float()
        rows.append(x)
    for dtype in DTYPES[:2]:
        assert wrong(torch.cat(rows).to(dtype), fmt) == [], dtype
