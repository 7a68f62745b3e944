# SPDX-License-Identifier: BSD-3-Clause
"""Where there is a choice, and what it costs to the byte."""

import pytest
from torch import nn

import blockscale as bs
from blockscale.selection.candidates import DEFAULT, read
from blockscale.selection.choices import choices
from tests.selection.models import Tied, mlp


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
    assert left == {"1.in_proj_weight": "a parameter of no layer, which the search leaves alone"}


def test_what_cannot_be_is_refused_with_its_reason():
    found, left = choices(mlp(), read(["int4:tile16x16:fp32:asym", "mxfp4"]), skip=["0"])
    assert [each.name for each in found] == ["2", "4"]
    assert left == {"0": "pattern '0' of the recipe"}
    assert found[0].refused == {}


def test_no_choice_at_all():
    with pytest.raises(ValueError, match=r"no layer of the model can have any.*pattern"):
        choices(mlp(), read(["mxfp4"]), skip=["*"])
    with pytest.raises(ValueError, match="itself a Linear"):
        choices(nn.Linear(4, 4), read(["mxfp4"]))
    bs.quantize_(model := mlp(), "mxfp4")
    with pytest.raises(ValueError, match="already quantized"):
        choices(model, read(["mxfp4"]))
