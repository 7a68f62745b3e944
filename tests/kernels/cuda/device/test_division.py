# SPDX-License-Identifier: BSD-3-Clause
"""Elements are divided with the reference's bits, in ordinary blocks and in others."""

import math

import pytest
import torch
from torch import Tensor

from blockscale.core.reference import QParams
from tests.support.cuda_device_inputs import midpoints
from tests.support.cuda_equal import DTYPES, wrong
from tests.support.some import crossed

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


@pytest.mark.some(5)
@pytest.mark.parametrize("fmt", crossed(3, STRANGE))
def test_blocks_that_are_not_ordinary(fmt: str) -> None:
    """All of them in a program, and some of them between ordinary ones, of zeros, too."""
    x = uncommon(DTYPES[STRANGE.index(fmt) % 2])
    for rows in (slice(None), [0, 1, 7], [0, 2, 5], [0, 9], [9, 9]):
        assert wrong(x[rows], fmt) == [], rows


@pytest.mark.some(12)
@pytest.mark.parametrize("scale", [3.0, -2.0, 0.0, 2.0**-149, 3e38, math.inf, math.nan])
def test_given_scales(scale: float) -> None:
    x = torch.cat([torch.randn(50), midpoints("e2m1:tensor:fp32")])
    for under in ("int8", "e2m1", "e4m3:recip", "binary"):
        element, _, option = under.partition(":")
        fmt = ":".join([element, "tensor", "fp32", *filter(None, [option])])
        assert wrong(x, fmt, given=QParams(torch.tensor([scale]))) == [], fmt


@pytest.mark.slow
@pytest.mark.parametrize("byte", [0, 1, 254, 255])
def test_given_bytes(byte: int) -> None:
    """Also integers whose step is subnormal, so that its inverse takes two factors."""
    x = midpoints("e2m1:tensor:fp32") * torch.tensor([[1.0], [2.0**-130]])
    for element in ("int16", "e3m2", "log8"):
        one = QParams(torch.tensor([[byte]], dtype=torch.uint8))
        assert wrong(x, f"{element}:tensor:e8m0/floor", given=one) == [], element
