"""Codes found by comparing (signs.py, powers.py): beside every number where one code turns over."""

import pytest
import torch
from torch import Tensor

from tests.kernels.cuda.equal import DTYPES, wrong

# numpy, in which the interpreter computes, tells of infinities and NaN
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def beside(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Each number as dtype has it, and its neighbours: [rows, n] -> [rows, 3 n]."""
    near = x.to(dtype)
    bits = near.view(torch.int32 if dtype == torch.float32 else torch.int16)
    found = torch.stack([bits - 1, bits, bits + 1], 2).flatten(1)
    return torch.where(near.repeat_interleave(3, 1) == 0, 0, found).view(dtype)


def turning(dtype: torch.dtype, count: int) -> Tensor:
    """Rows with a largest number of any fraction and all of its halves and 3 / 4, of both signs."""
    small = dtype == torch.float16
    fractions = 1 + torch.rand(count, 1, dtype=torch.float64)
    fractions[: count // 4] = 1 + torch.arange(count // 4)[:, None] / 2 ** (6 if small else 7)
    powers = 2.0 ** torch.randint(-3 if small else -17, 4 if small else 60, (count, 1)).double()
    largest = (fractions * powers).to(dtype).double()
    shares = 2.0 ** -torch.arange(9.0, dtype=torch.float64)
    found = beside((largest * torch.cat([shares[1:], shares * 0.75])).float(), dtype)
    found[:, ::2] *= -1
    row = torch.cat([largest.to(dtype), found, torch.zeros(count, 3, dtype=dtype)], 1)
    return torch.nn.functional.pad(row, (0, -row.shape[1] % 32))


@pytest.mark.parametrize("fmt", ["log4:token:fp32", "int2:token:fp32", "log3:token:bf16"])
def test_largest_number_as_scale(fmt: str) -> None:
    for dtype in DTYPES:
        assert wrong(turning(dtype, 24), fmt) == [], dtype


@pytest.mark.parametrize("fmt", ["ternary:token:fp32", "ternary:token:e8m0/floor"])
def test_means_as_scale(fmt: str) -> None:
    """A row of few sizes: so its mean and the threshold are not far from what is in it."""
    for dtype in DTYPES:
        size = torch.tensor([1.0, 1.4, 0.7, 0.5, 2.0])[torch.randint(5, (12, 64))]
        assert wrong((size * torch.randn(12, 64).sign()).to(dtype), fmt) == [], dtype


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


def test_sums_of_many_bits() -> None:
    """Means of numbers of all sizes, some of which are less than one in the sum; of long rows."""
    for dtype in DTYPES:
        size = 2.0 ** -torch.randint(0, 13 if dtype == torch.float16 else 40, (2, 4096)).float()
        x = (size * torch.randn(2, 4096)).to(dtype)
        x[1] = x[1].abs().clamp(max=1.0) if dtype != torch.float16 else 1.9375
        for fmt in ("ternary:token:fp32", "binary:token:fp32"):
            assert wrong(x, fmt) == [], (dtype, fmt)


def test_least_numbers_above_a_mean() -> None:
    """The largest number of a long row alone makes its mean; others lie about 0.7 of that."""
    for largest in (1.0, 1.9921875):
        x = torch.zeros(1, 2**14)
        x[0, 77], x[0, 1000:1256] = largest, largest * 2.0**-15 * (1 + torch.arange(256) / 128)
        for dtype in DTYPES[:2]:
            assert wrong(x.to(dtype), "ternary:token:fp32") == [], (largest, dtype)
