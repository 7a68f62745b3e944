"""Programs with blocks that are not ordinary take another branch (scale.py), to the same bits."""

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.ops import primitives as P
from tests.kernels.cuda.equal import DEVICE, DTYPES, wrong
from tests.kernels.same import same

# numpy, in which the interpreter computes, tells of infinities and NaN
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def uncommon(dtype: torch.dtype) -> Tensor:
    """Blocks of 16 that a program of ordinary ones leaves to its other branch, one a row."""
    x = torch.randn(8, 16).to(dtype)
    x[1] = 0
    x[2] *= 2.0**-40
    x[3, 3], x[4, 5], x[4, 6] = torch.nan, -torch.inf, torch.inf
    x[5, ::2], x[6] = 2.0**-70, x[6] * 2.0**15
    x[7] = torch.tensor([1, -0.0] * 8)
    return torch.cat([x, x[:1] * 2.0**120, x[:1] * 2.0**-110])


STRANGE = [
    "int4:group16:fp32", "e4m3:group16:fp32", "ternary:group16:e8m0/floor",
    "binary:group16:pow2/floor", "binary:group16:e4m3",
    "int8:group16:fp32:stochastic",
    "uint4:group16:fp32:asym", "nvfp4",
    "e3m2:group16:e8m0/floor:up",
]  # fmt: skip


@pytest.mark.parametrize("fmt", STRANGE)
def test_blocks_that_are_not_ordinary(fmt: str) -> None:
    """All of them in a program, and some of them between ordinary ones, of zeros, too."""
    x = uncommon(DTYPES[STRANGE.index(fmt) % 2])
    for rows in (slice(None), [0, 1, 7], [0, 2, 5], [0, 9], [9, 9]):
        assert wrong(x[rows], fmt) == [], rows


def test_pairs_that_do_not_start_at_four_bytes() -> None:
    """Numbers of 16 bits are read two and two: where they lie otherwise they move first."""
    x = torch.randn(1 + 4 * 32).bfloat16().to(DEVICE)[1:].reshape(4, 32)
    assert x.data_ptr() % 4 == 2
    for fmt in ("int8:group32:fp32", "mxfp4", "ternary:group16:fp32"):
        with bs.use("cuda"):
            found = P.choose_quantize(x, fmt, None)
        with bs.use("reference"):
            expected = P.choose_quantize(x, fmt, None)
        assert all(same(a, b) for a, b in zip(found, expected, strict=True)), fmt
