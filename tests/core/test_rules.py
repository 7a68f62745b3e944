# SPDX-License-Identifier: BSD-3-Clause
"""Patterns of recipes, and rules for ops: what they cover, what is refused, how they are told."""

import pickle
from dataclasses import replace

import pytest

import blockscale as bs
from blockscale.core.rules import OpScheme, check, covers_op, matches, names_op, split

SOFTMAX = {"op:softmax": {"input": "int8:tensor:fp32", "output": "uint8:tensor:fp32"}}


def test_layers_and_ops_match_patterns_of_their_own():
    assert matches("encoder.*", "encoder.layer.0") and not matches("op:*", "encoder")
    assert names_op("op:add") and not names_op("operator")
    assert split("op:add@encoder.*") == ("add", "encoder.*") and split("op:add") == ("add", "")
    assert covers_op("op:soft*", "softmax", "") and not covers_op("op:add", "softmax", "")
    assert covers_op("op:add@encoder.*", "add", "encoder.layer.0")
    assert covers_op("op:add@encoder", "add", "encoder.layer.0")  # what is below it, too
    assert not covers_op("op:add@encoder.*", "add", "decoder.0")
    assert covers_op(r"op:add@re:.*\.\d", "add", "decoder.0")


@pytest.mark.parametrize("pattern", ["op:", "op:add@", "op:@encoder"])
def test_patterns_that_name_no_op(pattern):
    with pytest.raises(ValueError, match="expected op:NAME or op:NAME@PATTERN"):
        check(pattern)
    with pytest.raises(ValueError, match="expected op:NAME"):
        bs.Recipe("int8", rules={pattern: {"input": "int8"}})


def test_a_recipe_decides_for_ops():
    recipe = bs.Recipe(
        "int8", input="int8_token", skip=["op:softmax@head"],
        rules=SOFTMAX
        | {"fc": "mxfp4", "op:softmax@*": None, "op:add": {"input": "int8", "shared": True}},
    )  # fmt: skip
    scheme, pattern = recipe.decide_op("softmax", "encoder.0")
    assert str(scheme.input) == "int8:tensor:fp32" and pattern == "op:softmax"
    assert recipe.decide_op("softmax", "head") == (OpScheme(), "op:softmax@head")
    assert recipe.decide_op("gelu", "head") == (OpScheme(), None)
    assert recipe.decide_op("add", "")[0].shared
    # layers take no notice, whatever they are called
    assert recipe.decide("op:softmax")[1] is None
    assert str(recipe.decide("fc")[0].weight) == str(bs.parse("mxfp4"))
    assert set(recipe.unmatched(["fc"])) == {"op:softmax@head", *recipe.op_rules}


def test_json_and_back():
    recipe = bs.Recipe(
        "int8", rules=SOFTMAX | {"op:add": {"input": "int8", "shared": True}, "op:x": None}
    )
    again = bs.Recipe.from_json(recipe.to_json())
    assert again == recipe and hash(again) == hash(recipe)
    assert recipe.to_dict()["rules"]["op:add"] == {"input": str(bs.parse("int8")), "shared": True}
    assert recipe.to_dict()["rules"]["op:x"] is None
    assert bs.Recipe("int8") != recipe
    assert replace(recipe, skip=("fc",)).op_rules == recipe.op_rules
    assert pickle.loads(pickle.dumps(recipe)) == recipe


def test_what_a_rule_for_ops_may_say():
    with pytest.raises(TypeError, match="an op has no weight"):
        bs.Recipe("int8", rules={"op:add": "int8"})
    with pytest.raises(ValueError, match="unknown key 'weight'; choose from input, output, shared"):
        bs.Recipe("int8", rules={"op:add": {"weight": "int8"}})
    with pytest.raises(TypeError, match="shared must be true or false, got 1"):
        bs.Recipe("int8", rules={"op:add": {"input": "int8", "shared": 1}})
    with pytest.raises(ValueError, match="shared needs an input format with the block tensor"):
        bs.Recipe("int8", rules={"op:add": {"input": "mxfp8", "shared": True}})
    with pytest.raises(ValueError, match="shared needs an input format"):
        bs.Recipe("int8", rules={"op:add": {"output": "int8", "shared": True}})


def test_modules_say_that_rules_for_ops_match_nothing():
    model = bs_model()
    with pytest.warns(UserWarning, match="pattern 'op:softmax' of the recipe matches nothing"):
        bs.quantize_(model, bs.Recipe("int8", rules=SOFTMAX))


def bs_model():
    from torch import nn

    return nn.Sequential(nn.Linear(8, 8))
