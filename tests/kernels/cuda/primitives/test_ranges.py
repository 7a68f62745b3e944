# SPDX-License-Identifier: BSD-3-Clause
"""Blocks that are larger than a program, or lie across many rows, have the reference's scales."""

import pytest
import torch

from tests.support.cuda_equal import wrong

# numpy, in which the interpreter computes, tells of infinities and NaN
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.slow
@pytest.mark.parametrize("fmt", ["int8:tensor:fp32", "e2m1:token:e4m3", "uint4:channel0:fp16:asym"])
def test_blocks_larger_than_a_program(fmt: str) -> None:
    """Extremes of their parts are merged; the last part is shorter."""
    x = torch.randn(2, 33_001)
    x[1, 33_000] = 9
    assert wrong(x, fmt) == []


@pytest.mark.parametrize("fmt", ["int8:channel-1:fp32", "int8:channel1:e8m0/ceil:asym"])
def test_blocks_across_many_rows(fmt: str) -> None:
    assert wrong(torch.randn(3, 20, 30), fmt) == []
    assert wrong(torch.randn(700, 60).t(), fmt) == []
