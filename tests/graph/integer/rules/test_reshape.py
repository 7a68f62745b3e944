# SPDX-License-Identifier: BSD-3-Clause
"""The methods view, reshape and contiguous."""

import pytest
import torch

from blockscale.graph.integer.convert import to_integer, with_integer_bias
from blockscale.graph.integer.layers import NotIntegerError
from tests.support.integer_models import INT8, between, check

SHAPES = [lambda x: x.view(2, 4, 16, 1), lambda x: x.reshape(2, 4, 1, 16)]


@pytest.mark.parametrize("reshape", SHAPES)
def test_codes_of_one_scale_take_any_shape(reshape) -> None:
    model, x = between(reshape, INT8)
    found, expected = to_integer(model, x)(x), with_integer_bias(model)(x)
    assert torch.equal(found, expected.detach())


@pytest.mark.parametrize("reshape", SHAPES)
def test_channels_of_several_scales_do_not(reshape) -> None:
    model, x = between(reshape)
    with pytest.raises(
        NotIntegerError, match=r"mixes channels .* use flatten\(1\), or give the layer"
    ):
        to_integer(model, x)


def test_contiguous_moves_nothing() -> None:
    model, x = between(lambda x: x.contiguous())
    check(model, x)
