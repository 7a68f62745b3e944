# SPDX-License-Identifier: BSD-3-Clause
"""Binary numbers: the sign."""

import math

import torch

from blockscale.core.block import Blocks, read_block
from blockscale.core.elements import read_element
from tests.core.elements.points import encode
from tests.support.oracle_elements import Binary


def exact(name: str, options: frozenset[str]) -> Binary | None:
    """The oracle of the element `name`."""
    del options
    return Binary() if name == "binary" else None


def test_binary_is_the_sign_and_zero_is_positive() -> None:
    y = torch.tensor([-math.inf, -1.0, -(2.0**-149), -0.0, 0.0, 2.0**-149, math.inf, math.nan])
    assert encode("binary", y).tolist() == [-1, -1, -1, 1, 1, 1, 1, 1]


def test_the_scale_is_the_mean_magnitude() -> None:
    x = torch.tensor([[1.0, -3.0, 0.0, 4.0], [math.nan, 2.0, -2.0, math.inf]])
    mean = read_element("binary").magnitude(Blocks(x, read_block("token")))
    assert mean.tolist() == [[2.0], [2.0]]  # of the finite ones
