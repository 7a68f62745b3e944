# SPDX-License-Identifier: BSD-3-Clause
"""Sizes, which are the same on integers."""

import pytest
import torch

from blockscale.graph.integer.convert import to_integer, with_integer_bias
from blockscale.graph.integer.layers import NotIntegerError
from tests.support.integer_models import INT8, between

SHAPES = [
    lambda x: x.reshape(x.size(0), x.size(1), -1, 1),
    lambda x: x.reshape(x.shape[0], x.shape[1], x.shape[2] * x.shape[3], 1),
]


@pytest.mark.parametrize("operation", SHAPES)
def test_a_model_that_asks_for_sizes_takes_any_batch(operation) -> None:
    model, x = between(operation, INT8)
    integer = to_integer(model, x)
    for count in (1, 2, 5):
        batch = torch.randn(count, 2, 4, 4)
        assert torch.equal(integer(batch), with_integer_bias(model)(batch).detach())


def test_other_attributes_are_refused() -> None:
    model, x = between(lambda x: x.mT, INT8)
    with pytest.raises(NotIntegerError, match="of 'mT' has no integer form here"):
        to_integer(model, x)
