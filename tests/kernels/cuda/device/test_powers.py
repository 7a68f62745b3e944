"""Codes that are powers of two, found by comparing: beside every number where one turns over."""

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
