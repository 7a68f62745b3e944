# SPDX-License-Identifier: BSD-3-Clause
"""What may be named as a candidate."""

import pytest

import blockscale as bs
from blockscale.core.recipe import Scheme
from blockscale.selection.candidates import DEFAULT, read


def test_the_default_is_bounded_by_its_bits():
    found = read(None)
    assert [each.name for each in found] == list(DEFAULT)
    bits = [each.scheme.weight.bits_per_element((768, 768)) for each in found]
    assert 2 < min(bits) < 3
    assert 8 < max(bits) < 8.3


def test_every_way_to_name_one():
    given = [
        "mxfp4",
        "int8_channel x int8_token",
        bs.parse("nvfp4"),
        {"weight": "int4", "input": "int8_token"},
        Scheme(bs.parse("mxfp8"), bs.parse("mxfp8")),
    ]
    found = read(given)
    assert [each.scheme.weight for each in found] == [
        bs.parse(f) for f in ("mxfp4", "int8_channel", "nvfp4", "int4", "mxfp8")
    ]
    inputs = [None, "int8_token", None, "int8_token", "mxfp8"]
    assert [each.scheme.input for each in found] == [f and bs.parse(f) for f in inputs]
    assert found[3].name == "int4:group128:fp32 x int8:token:fp32"
    assert found[1].rule == {"weight": "int8:channel0:fp32", "input": "int8:token:fp32"}
    assert read([each.name for each in found]) == tuple(
        type(each)(each.name, each.scheme) for each in found
    )  # names can be read again


def test_a_scheme_that_is_named_twice_counts_once():
    found = read(["mxfp4", "e2m1:group32:e8m0/floor", "int4"])
    assert [each.name for each in found] == ["mxfp4", "int4"]


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ("mxfp4", TypeError, r"write \['mxfp4'\]"),
        ([], ValueError, "candidates is empty"),
        (["mxfp5"], ValueError, "mxfp5"),
        ([3], TypeError, "found a int"),
        ([{"weights": "mxfp4"}], ValueError, "not 'weights'"),
        ([{"input": "mxfp4"}], ValueError, "needs a weight"),
    ],
)
def test_what_is_no_candidate(given, error, told):
    with pytest.raises(error, match=told):
        read(given)
