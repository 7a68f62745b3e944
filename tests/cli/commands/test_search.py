# SPDX-License-Identifier: BSD-3-Clause
"""`blockscale search` on a small model's directory."""

import json

import pytest
from typer.testing import CliRunner

import blockscale as bs
from blockscale.cli.app import app
from tests.support.cli_model_directory import tiny

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny(tmp_path_factory.mktemp("models") / "tiny", tie_word_embeddings=False)


def run(*args):
    return CliRunner().invoke(app, ["search", *map(str, args), "--quiet"])


def test_a_recipe_that_quantize_takes(model, tmp_path):
    out, recipe = tmp_path / "search.json", tmp_path / "recipe.json"
    options = ["--budget", 6, "--out", out, "--recipe", recipe, "--objective", "kl"]
    result = run(model, *options, "--state", tmp_path / "state.json")
    assert result.exit_code == 0, result.stderr
    found = bs.read_search(out)
    assert found.objective == "kl"
    assert found.point.bits <= 6
    assert found.recipe == bs.Recipe.read(recipe)
    for layer in found.layers:
        assert layer.name in result.stdout
    again = run(model, *options, "--state", tmp_path / "state.json", "--json")
    assert json.loads(again.stdout)["chosen"]["recipe"] == found.recipe.to_dict()
    args = ["quantize", model, tmp_path / "out", "--recipe", recipe, "--json"]
    quantized = CliRunner().invoke(app, [str(each) for each in args])
    assert quantized.exit_code == 0, quantized.stderr
    entries = {each["name"]: each for each in json.loads(quantized.stdout)["entries"]}
    kinds = [entries[f"{layer.name}.weight"]["status"] for layer in found.layers]
    assert set(kinds) == {"quantized"}


def test_errors_come_before_work(model, tmp_path):
    assert "create it first" in run(model, "--out", tmp_path / "no" / "a.json").stderr
    (tmp_path / "empty.txt").write_text("\n \n")
    assert "has no sentences" in run(model, "--text", tmp_path / "empty.txt").stderr
    assert "has no config.json: name a directory" in run(tmp_path).stderr
    bad = run(model, "--candidate", "mxfp5")
    assert bad.exit_code == 1
    assert "mxfp5" in bad.stderr
