# SPDX-License-Identifier: BSD-3-Clause
"""Sizes, shapes and names as people read them."""

import pytest

from blockscale.reporting.wording import family, shape, size


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (90_900_000, "90.9 MB"),
        (2**34, "17.2 GB"),
        (5e15, "5000.0 TB"),
    ],
)
def test_sizes(nbytes, text):
    assert size(nbytes) == text


def test_shapes():
    assert shape((384, 1536)) == "384 x 1536"
    assert shape((7,)) == "7"
    assert shape(()) == "scalar"


def test_families():
    assert family("layer.11.0.weight") == family("layer.2.34.weight") == "layer.*.*.weight"
    assert family("head.weight") == "head.weight"
