# SPDX-License-Identifier: BSD-3-Clause
"""Tensors with little or nothing in them."""

import pytest
import torch

from tests.support.cuda_equal import wrong

# numpy, in which the interpreter computes, tells of infinities and NaN
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.some(3)
@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 5), (), (1,)], ids=str)
def test_shapes_with_little_in_them(shape: tuple[int, ...]) -> None:
    for fmt in ("int4:tensor:fp32", "binary:tensor:fp32", "e2m1:tensor:e4m3"):
        assert wrong(torch.ones(shape), fmt) == [], fmt
