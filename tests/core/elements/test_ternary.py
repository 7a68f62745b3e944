# SPDX-License-Identifier: BSD-3-Clause
"""Ternary numbers: the threshold below which a weight becomes 0, and the mean of the others."""

import math
from fractions import Fraction

import torch

from blockscale.core import reference
from blockscale.core.block import Blocks, read_block
from blockscale.core.elements import read_element
from blockscale.core.parse import parse
from tests.core.elements.points import encode
from tests.support.oracle_elements import Integer


def exact(name: str, options: frozenset[str]) -> Integer | None:
    """The oracle of the element `name`."""
    del options
    return Integer(2, 0, -1, 1, Fraction(1), 0) if name == "ternary" else None


def test_it_saturates_and_nan_is_zero() -> None:
    y = torch.tensor([-math.inf, -1e30, -(2.0**15) - 1, 2.0**17, math.inf, math.nan])
    for wide in (False, True):
        assert encode("ternary", y, wide=wide).tolist() == [-1, -1, -1, 1, 1, 0]


def test_the_scale_is_the_mean_of_what_is_above_the_threshold() -> None:
    """Mean magnitude 2.5, times 0.7 is 1.75: the mean of 4 and -4 is the scale, 1 becomes 0."""
    x = torch.tensor([[1.0, 4.0, -4.0, 1.0]])
    mean = read_element("ternary").magnitude(Blocks(x, read_block("token")))
    assert mean.tolist() == [[4.0]]
    fmt = parse("ternary:token:fp32")
    assert reference.fake_quantize(x, reference.choose_qparams(x, fmt), fmt).tolist() == [
        [0.0, 4.0, -4.0, 0.0]
    ]


def test_the_threshold_is_not_part_of_what_is_above_it() -> None:
    """|x| = 0.7 * mean exactly, in float32: such weights do not count for the scale."""
    threshold = torch.tensor(0.7)
    rest = 2 - threshold  # the mean of the two is 1
    x = torch.stack([threshold, rest])[None]
    mean = read_element("ternary").magnitude(Blocks(x, read_block("token")))
    assert mean.tolist() == [[rest.item()]]


def test_its_range_takes_no_options_of_integers() -> None:
    assert not read_element("ternary").integer
    assert read_element("ternary").limits(True) == read_element("ternary").limits(False) == (-1, 1)
