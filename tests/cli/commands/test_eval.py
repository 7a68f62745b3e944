# SPDX-License-Identifier: BSD-3-Clause
"""`blockscale eval` on a small model's directory."""

import json

import pytest
from typer.testing import CliRunner

import blockscale as bs
from blockscale.cli.app import app
from blockscale.evaluation.figures import read
from tests.support.cli_model_directory import tiny, tokenizer

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    model = tokenizer(tiny(folder / "tiny"))
    bs.quantize_directory(model, folder / "q", "int4:group32:fp16")
    (folder / "text.txt").write_text("the a on for in the\n" * 40)
    return model, folder / "q", folder / "text.txt"


def run(*args):
    return CliRunner().invoke(app, ["eval", *map(str, args), "--quiet"])


def test_a_model_beside_its_float_one(models, tmp_path):
    model, quantized, text = models
    out, sizes = tmp_path / "e.json", ["--sequences", 4, "--length", 16, "--batch", 3]
    result = run(quantized, "--against", model, "--text", text, *sizes, "--out", out, "--layers")
    assert result.exit_code == 0, result.stderr
    assert "top-10 agreement" in result.stdout and "4 sequences" in result.stdout
    assert "q_proj" in result.stdout  # a line for each layer
    figures = read(out)
    assert figures["loss"].weight == 4 * 15 and figures["kl"].mean > 0
    alone = run(model, "--text", text, *sizes, "--json")
    loss = json.loads(alone.stdout)["figures"]["loss"]["mean"]
    added = figures["loss"].mean - loss
    assert figures["loss added"].mean == pytest.approx(added, abs=1e-6)


def test_a_stopped_run_goes_on(models, tmp_path):
    model, _, text = models
    state, sizes = tmp_path / "state.jsonl", ["--text", text, "--length", 8, "--json"]
    whole = run(model, *sizes, "--sequences", 4, "--state", state)
    lines = state.read_text().splitlines(keepends=True)
    assert len(lines) == 5
    state.write_text("".join(lines[:3]))
    again = run(model, *sizes, "--sequences", 4, "--state", state)
    assert again.exit_code == 0, again.stderr
    assert json.loads(again.stdout) == json.loads(whole.stdout)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--length", "1"], "at least 1 sequence of 2 tokens"),
        (["--text", "{missing}"], "missing.txt"),
        (["--device", "nowhere"], "device 'nowhere' cannot be used here"),
        (["--out", "{folder}"], "is a directory"),
        (["--layers"], "give the float model"),
    ],
)
def test_what_is_refused_is_one_message(models, tmp_path, options, words):
    places = {"missing": tmp_path / "missing.txt", "folder": tmp_path}
    result = run(models[0], *(option.format(**places) for option in options))
    assert result.exit_code == 1
    assert words in result.stderr and "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("top", [None, 10])
def test_a_stored_reference_takes_the_float_models_place(models, tmp_path, top):
    model, quantized, text = models
    sizes = ["--text", text, "--sequences", 4, "--length", 16, "--batch", 2]
    file, more = tmp_path / "reference.safetensors", [] if top is None else ["--top", top]
    stored = run(model, *sizes, "--store", file, *more)
    assert stored.exit_code == 0, stored.stderr
    found, beside = (
        json.loads(run(quantized, *sizes, "--against", against, "--json").stdout)["figures"]
        for against in (file, model)
    )
    assert found.keys() == beside.keys()
    for name in found:
        if top is None or name != "kl":
            assert found[name]["mean"] == pytest.approx(beside[name]["mean"], rel=1e-6, abs=1e-9)
    other = run(quantized, "--text", text, "--sequences", 4, "--length", 16, "--against", file)
    assert other.exit_code == 1
    assert "was made of 2 other batches: give the same text" in other.stderr
