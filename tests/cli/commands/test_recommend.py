# SPDX-License-Identifier: BSD-3-Clause
"""`blockscale recommend` on a small model's directory."""

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
    return CliRunner().invoke(app, ["recommend", *map(str, args), "--quiet"])


def test_what_is_told_is_checked(model, tmp_path):
    recipe = tmp_path / "recipe.json"
    result = run(model, "--budget", "5", "--recipe", recipe, "--check")
    assert result.exit_code == 0, result.stderr
    assert "bits a weight under the budget 5" in result.stdout
    assert "(+0.00 %)" in next(x for x in result.stdout.splitlines() if x.startswith("bytes: "))
    assert bs.Recipe.read(recipe).rules


def test_json(model, tmp_path):
    out = tmp_path / "a.json"
    result = run(model, "--budget", "quality=0.9", "--json", "--check", "--out", out)
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["foretold"]["quality"] >= 0.9
    assert told["errors"]["bytes"] == 0
    assert json.loads(out.read_text())["recipe"] == told["recipe"]


def test_errors(model, tmp_path):
    assert "is not a budget" in run(model, "--budget", "fast").stderr
    assert "is a directory" in run(model, "--out", tmp_path).stderr
