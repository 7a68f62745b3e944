# SPDX-License-Identifier: BSD-3-Clause
"""What may be named as a candidate."""

import pytest
from torch import nn

import blockscale as bs
from blockscale.core.recipe import Scheme
from blockscale.selection.candidates import DEFAULT, choices, read
from blockscale.selection.recommend import TIMED
from tests.selection.models import Tied, mlp


def test_the_default_is_bounded_by_its_bits():
    found = read(None)
    assert [each.name for each in found] == list(DEFAULT)
    bits = [each.scheme.weight.bits_per_element((768, 768)) for each in found]
    assert 2 < min(bits) < 3
    assert 8 < max(bits) < 8.3


def test_no_rule_of_mxfp4_that_loses_a_nat_on_real_models_is_chosen_from():
    """docs/defaults.md: tosa 1.640 where floor, which the name stands for, loses 1.962."""
    for names in (DEFAULT, TIMED):
        formats = [each.scheme.weight for each in read(names)]
        assert bs.parse("e2m1:group32:e8m0/tosa") in formats
        assert bs.parse("mxfp4") not in formats
    assert bs.parse("mxfp4").spelling == "e2m1:group32:e8m0/floor"  # OCP's, bits and all


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
        ([3], TypeError, "found an int"),
        ([{"weights": "mxfp4"}], ValueError, "unknown key 'weights' of a candidate"),
        ([{"input": "mxfp4"}], ValueError, "needs a weight"),
    ],
)
def test_what_is_no_candidate(given, error, told):
    with pytest.raises(error, match=told):
        read(given)


# Where there is a choice, and what it costs to the byte.


def test_bits_are_those_that_are_stored():
    model = nn.Sequential(nn.Linear(70, 33), nn.Conv2d(6, 5, 3), nn.Embedding(7, 50))
    candidates = read([*DEFAULT, "int5:group7:fp32", "uint4", "ternary", "mxfp8 x mxfp8"])
    found, left = choices(model, candidates)
    assert [each.name for each in found] == ["0", "1", "2"]
    assert left == {}
    for choice in found:
        assert choice.elements == model.get_submodule(choice.name).weight.numel()
        assert choice.float_bytes == 4 * choice.elements
        for candidate in candidates:
            [layer] = choice.layers(candidate).values()
            assert choice.bits(candidate) == 8 * layer.qweight.nbytes
            assert candidate.scheme.weight.nbytes(choice.shape) == layer.qweight.tensor.nbytes


def test_layers_that_share_a_weight_are_one_choice():
    model = Tied()
    found, _ = choices(model, read(["mxfp4", "int4:group8:fp32"]))
    assert [each.names for each in found] == [("table", "head"), ("inner",)]
    assert found[0].modules == (model.table, model.head)
    made = found[0].layers(read(["mxfp4"])[0])
    assert made["table"].qweight is made["head"].qweight
    assert model.table.weight is model.head.weight  # nothing was put in


def test_parameters_of_no_layer_are_left_and_named():
    model = nn.Sequential(nn.Linear(16, 16), nn.MultiheadAttention(128, 2))
    found, left = choices(model, read(["mxfp4"]))
    assert [each.name for each in found] == ["0", "1.out_proj"]
    assert left == {
        "1.in_proj_weight": "a parameter that belongs to no layer, which the search does not change"
    }


def test_what_cannot_be_is_refused_with_its_reason():
    found, left = choices(mlp(), read(["int4:tile16x16:fp32:asym", "mxfp4"]), skip=["0"])
    assert [each.name for each in found] == ["2", "4"]
    assert left == {"0": "pattern '0' of the recipe"}
    assert found[0].refusals == {}


def test_no_choice_at_all():
    with pytest.raises(ValueError, match=r"no layer of the model can have any.*pattern"):
        choices(mlp(), read(["mxfp4"]), skip=["*"])
    with pytest.raises(ValueError, match="itself a Linear"):
        choices(nn.Linear(4, 4), read(["mxfp4"]))
    bs.quantize_(model := mlp(), "mxfp4")
    with pytest.raises(ValueError, match="already quantized"):
        choices(model, read(["mxfp4"]))
