# SPDX-License-Identifier: BSD-3-Clause
"""What slabs say together is what the whole tensor says."""

import math

import pytest
import torch

from blockscale.core import reference
from blockscale.core.cuts import block_sizes
from blockscale.core.parse import parse
from blockscale.files.slabs.cutting import cut_slabs
from blockscale.files.slabs.first_pass import FirstPass
from tests.support.some import crossed


def first_pass(x, name, elements):
    fmt = parse(name)
    sizes = block_sizes(fmt, x.ndim)

    def read(cuts, slab):
        rows = slice(slab.start, slab.stop)
        return x[slab.matrix : slab.matrix + 1, rows] if cuts.dim else x[rows]

    return fmt, FirstPass(read, cut_slabs(tuple(x.shape), sizes.values(), elements), sizes, fmt)


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize(
    ("name", "elements"),
    crossed(
        1,
        ["int8", "uint8", "ternary:tensor:fp32", "binary:channel1:fp32", "int8:tensor:e8m0/floor",
         "int8:channel1:fp32", "uint4:channel1:fp32:offset", "int8:block*x*:fp32"],
        [50, 300, 10**6],
    ),
)  # fmt: skip
def test_ranges(name, elements, odd):
    for shape in [(37, 20), (3, 20, 20)]:
        x = torch.randn(shape).bfloat16()
        if odd:
            x[1, 3], x[-1, 2] = math.nan, -math.inf
        fmt, passes = first_pass(x, name, elements)
        found, expected = passes.ranges(), reference.ranges(x, fmt)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        assert not (odd and passes.finite)


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("name", ["nvfp4", "nvfp4_token", "e2m1:group4:(e4m3:block*x*:fp32)"])
def test_tops(name, odd):
    for shape, elements in [((37, 20), 50), ((3, 20, 20), 100), ((3, 20, 20), 10**6)]:
        x = torch.randn(shape)
        if odd:
            x[1, 3], x[-1, 2] = math.nan, -math.inf
        fmt, passes = first_pass(x, name, elements)
        assert torch.equal(passes.tops(), reference.tops(reference.ranges(x, fmt), fmt))
        assert passes.finite is not odd


def test_one_block_of_numbers_above_0():
    """A range holds 0, also where no number is below it."""
    x = torch.rand(37, 20) + 1
    fmt, passes = first_pass(x, "uint8", 50)
    found, expected = passes.ranges(), reference.ranges(x, fmt)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
