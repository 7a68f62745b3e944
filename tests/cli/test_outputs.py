# SPDX-License-Identifier: BSD-3-Clause
"""Files beside what is printed."""

import pytest

import blockscale as bs
from blockscale.cli.outputs import check_outputs, write_recipe


def test_a_recipe_is_read_back(tmp_path):
    recipe = bs.Recipe("mxfp4", rules={"a": "int8"})
    write_recipe(tmp_path / "recipe.json", recipe)
    assert bs.Recipe.read(tmp_path / "recipe.json") == recipe
    write_recipe(None, recipe)
    assert [each.name for each in tmp_path.iterdir()] == ["recipe.json"]


def test_places(tmp_path):
    check_outputs(None, None)
    check_outputs(tmp_path / "a.json", tmp_path / "b.json")
    with pytest.raises(ValueError, match="is a directory"):
        check_outputs(tmp_path, None)
    with pytest.raises(ValueError, match="create it first"):
        check_outputs(None, tmp_path / "no" / "a.json")
