# SPDX-License-Identifier: BSD-3-Clause
"""Maxima over windows."""

import pytest
import torch.nn.functional as F
from torch import nn

from blockscale.graph.integer.convert import to_integer
from blockscale.graph.integer.layers import NotIntegerError
from tests.support.integer_models import INT8, between, check

POOLS = [
    nn.MaxPool2d(2),
    nn.MaxPool2d(3, 1, 1),
    nn.MaxPool2d(2, 1, dilation=2),
    nn.MaxPool2d(3, 2, ceil_mode=True),
    lambda x: F.max_pool2d(x, 3, 2, 1, 1, True),  # ceil_mode comes before return_indices there
]


@pytest.mark.parametrize("output", [None, INT8])
@pytest.mark.parametrize("pool", POOLS)
def test_of_codes_and_of_sums(pool, output: str | None) -> None:
    model, x = between(pool, output)
    check(model, x)


def test_indices_have_no_integer_form() -> None:
    model, x = between(nn.MaxPool2d(2))
    assert to_integer(model, x).exact
    model.operation = nn.MaxPool2d(2, return_indices=True)
    model.last = nn.Identity()
    with pytest.raises(NotIntegerError, match="returns indices, which have no integer form here"):
        to_integer(model, x)
