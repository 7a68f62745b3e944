# SPDX-License-Identifier: BSD-3-Clause
"""Recipes from errors."""

import math

import pytest

import blockscale as bs
from blockscale.selection.candidates import read
from blockscale.selection.choose import (
    LayerChoice,
    LayerError,
    as_recipe,
    damage,
    literal,
    recipe_of,
)

CANDIDATES = read(["mxfp4", "int8_channel x int8_token"])


def layer(name, elements, *errors):
    named = [
        LayerError(each.name, bits, 10.0, fisher)
        for each, (bits, fisher) in zip(CANDIDATES, errors, strict=True)
    ]
    return LayerChoice((name,), "Linear", (1, elements), elements, 32 * elements, tuple(named))


def test_a_budget_is_an_average_over_all_weights():
    layers = [layer("a", 100, (4.25, 1.0), (8.0, 0.0)), layer("a.b", 300, (4.25, 2.0), (8.0, 0.5))]
    few = recipe_of(layers, CANDIDATES, "fisher", 4.25)
    assert (few.bits, few.damage, few.seconds) == (4.25, 3.0, None)
    some = recipe_of(layers, CANDIDATES, "fisher", 5.2)
    assert (some.bits, some.damage) == ((4.25 * 300 + 8 * 100) / 400, 2.0)
    most = recipe_of(layers, CANDIDATES, "fisher", 8)
    assert (most.bits, most.damage) == (8, 0.5)
    assert some.recipe.decide("a")[0] == CANDIDATES[1].scheme
    assert some.recipe.decide("a.b")[0] == CANDIDATES[0].scheme  # inside of "a", and not the same
    assert not some.recipe.decide("c")[0]


def test_times_have_to_be_there():
    with pytest.raises(ValueError, match="the search measured no times"):
        recipe_of([layer("a", 8, (4.25, 1.0), (8.0, 0.0))], CANDIDATES, "fisher", 8, 1.0)


def test_scores():
    one = layer("a", 100, (4.25, -1.0), (8.0, math.inf))
    assert damage(one.candidates[0], "fisher", one) == 0
    assert damage(one.candidates[1], "fisher", one) == 1e30
    assert damage(one.candidates[0], "sqnr", one) == pytest.approx(10.0)
    silent = LayerError("mxfp4", 4.25, math.nan, loss=3.0)
    assert damage(silent, "sqnr", one) == 0
    assert damage(silent, "output", one) == 3.0


def test_names_are_patterns_of_themselves():
    recipe = as_recipe({("a",): CANDIDATES[0], ("x", "a.b.c"): CANDIDATES[1]})
    assert list(recipe.rules) == ["a.b.c", "a", "x"]
    assert literal("layers.0") == "layers.0"
    assert bs.Recipe(rules={literal("a*[b"): "mxfp4"}).decide("a*[b")[0].weight
    assert not bs.Recipe(rules={literal("a*[b"): "mxfp4"}).decide("axx[b")[0].weight


def test_a_candidate_by_its_name():
    error = LayerError("mxfp4", 4.25, 20.0)
    layer = LayerChoice(("a", "b"), "Linear", (2, 32), 64, 2048, (error,))
    assert layer.name == "a"
    assert layer["mxfp4"] is error
    with pytest.raises(KeyError):
        layer["int4"]
