# SPDX-License-Identifier: BSD-3-Clause
"""What a page is told of formats."""

import pytest

from blockscale.core.parse import parse
from blockscale.reporting.browser.formats import parts, refusal, told


def test_blocks_of_a_matrix():
    assert told("a", parse("int8:tensor:fp32"))["block"] == [None, None]
    assert told("a", parse("int8:channel0:fp32"))["block"] == [1, None]
    assert told("a", parse("int8:tile4x8:fp32"))["block"] == [4, 8]
    assert told("a", parse("mxfp4"))["block"] == [1, 32]
    flat = told("a", parse("nf4:flat64:fp32"))
    assert (flat["flat"], flat["block"]) == (True, [64, 64])


def test_bits_beside_codes():
    nvfp4 = told("a", parse("nvfp4"))
    assert (nvfp4["bits"], nvfp4["overhead"], nvfp4["once"]) == (4, 8, 32)
    uint4 = told("a", parse("uint4"))
    assert (uint4["overhead"], uint4["once"], uint4["asym"]) == (64, 0, True)


@pytest.mark.parametrize(
    ("spelling", "why"),
    [
        ("int8:tensor:fp32:stochastic", "chance"),
        ("e4m3:group32:e8m0/given", "given, not chosen"),
        ("int4:group32:(uint6:group8:fp32)", "one outer scale"),
        ("int4:flat64@0:fp32", "lie together"),
    ],
)
def test_what_a_page_cannot_show(spelling, why):
    assert why in refusal(parse(spelling))
    with pytest.raises(ValueError, match=why):
        told("a", parse(spelling))


def test_parts_are_those_that_shaders_need():
    few = parts({"a": parse("mxfp4")})
    assert "kernels/box_codes" in few
    assert not any(name.startswith("boxes/mean") for name in few)
    assert any(name == "boxes/mean" for name in parts({"a": parse("ternary")}))
