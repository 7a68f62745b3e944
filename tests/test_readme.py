# SPDX-License-Identifier: BSD-3-Clause
"""README's commands that export a model run as they stand there, and the Python after them."""

import pathlib
import re
import shlex
import shutil
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from blockscale.cli.app import app
from blockscale.cli.model_directory import read_model
from blockscale.demo import minilm

README = (pathlib.Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.compile(
    r"<!-- run: tests/test_readme.py -->\n```console\n(?P<commands>.*?)^```$"
    r"(?P<between>.*?)^```python\n(?P<python>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


def small(path: pathlib.Path) -> None:
    """An encoder of one narrow layer with MiniLM's own tokenizer."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    BertModel(BertConfig(num_attention_heads=2, **sizes)).save_pretrained(path)  # type: ignore[arg-type]
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        shutil.copyfile(minilm.directory() / name, path / name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["small", pytest.param("MiniLM", marks=pytest.mark.slow)])
def test_export(name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if name == "small":
        small(tmp_path / "MODEL_DIR")
    else:
        shutil.copytree(minilm.directory(), "MODEL_DIR")
    found = BLOCKS.search(README)
    assert found is not None
    commands = [line.removeprefix("$ ") for line in found["commands"].splitlines()]
    assert [each.split()[:2] for each in commands] == [
        ["blockscale", "export"], ["blockscale", "audit"],
    ]  # fmt: skip
    for command in commands:
        result = CliRunner().invoke(app, shlex.split(command, comments=True)[1:])
        assert result.exit_code == 0, result.output
    assert "in integers" in result.stdout
    values: dict[str, Any] = {}
    exec(compile(found["python"], "README.md", "exec"), values)
    model, _ = read_model(pathlib.Path("MODEL_DIR"))
    given = {name: torch.from_numpy(values["tokens"][name]) for name in values["tokens"]}
    with torch.no_grad():
        states = model(**given).last_hidden_state
    rows = given["attention_mask"].bool()
    near = torch.cosine_similarity(torch.from_numpy(values["states"])[rows], states[rows], -1)
    assert near.shape == (int(rows.sum()),) and near.mean() > 0.98
