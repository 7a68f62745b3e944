# SPDX-License-Identifier: BSD-3-Clause
"""Slabs are small, and cut no block that does not span them all."""

import math

import pytest

from blockscale.core.cuts import block_sizes
from blockscale.core.parse import formats, parse
from blockscale.files.slabs.cutting import SLAB, cut_slabs, flat_shape


@pytest.mark.some(4)
@pytest.mark.parametrize("name", [*formats(), "int8:channel1:fp32", "e4m3:tile128x128:fp32"])
@pytest.mark.parametrize("shape", [(150000, 4096), (64, 5120, 16384), (4096, 9 * 4096)])
def test_slabs_are_small(name, shape):
    """However large a tensor is; a tile is 128 rows high, and cannot be less."""
    fmt = parse(name)
    shape = flat_shape(shape, fmt)
    cuts = cut_slabs(shape, block_sizes(fmt, len(shape)).values(), SLAB)
    assert cuts.elements <= max(SLAB, 128 * shape[-1] * ("tile" in name))
    rows = sum(slab.stop - slab.start for slab in cuts.slabs)
    assert rows == math.prod(shape[: cuts.dim + 1])


def test_flat_shapes():
    assert flat_shape((3, 4, 64), parse("mxfp4")) == (12, 64)
    assert flat_shape((3, 4, 64), parse("nvfp4")) == (12, 64)
    assert flat_shape((3, 4, 64), parse("int8")) == (12, 64)
    for spelling in ("int8:channel0:fp32", "int8:tile2x2:fp32", "int8:group4@2:fp32"):
        assert flat_shape((3, 4, 64), parse(spelling)) == (3, 4, 64)


def test_nothing_is_cut_once():
    for shape in ((2**20, 0), (0, 2**40), (2**40, 2**10, 0), (3, 0, 5)):
        cuts = cut_slabs(shape, [(1,) * len(shape)], 100)
        assert cuts.slabs == [(0, shape[0], 0)]
