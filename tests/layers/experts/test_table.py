# SPDX-License-Identifier: BSD-3-Clause
"""The table of docs/experts.md: what each family of transformers can have done to its experts."""

import copy
import pathlib
import re
import warnings
from typing import Any

import pytest
import torch

import blockscale as bs
from blockscale.layers.store import all_held
from tests.layers.experts.families import FAMILIES, build, logits

pytest.importorskip("transformers")
DOCS = pathlib.Path(__file__).parents[3] / "docs" / "experts.md"
PAIR = {"weight": "mxfp4", "input": "mxfp4"}
WHOLE = bs.Recipe("mxfp4", input="mxfp4")
QUICK = ("mixtral", "gpt_oss", "dbrx", "jetmoe")
EACH = [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in FAMILIES]
IDS = [{"input_ids": torch.arange(2, 98).reshape(4, 24) % 96}]


def works(kind: str, path: pathlib.Path) -> list[str]:
    """yes or no: quantize_ with inputs, saved and loaded; the directory command gives the same,
    read by bs.load; gptq; all tokens to all experts."""
    floats = build(kind)
    pairs, learned = copy.deepcopy(floats), copy.deepcopy(floats)
    bs.quantize_(pairs, WHOLE)  # by names of files, too
    stacks = {name: w for name, w in all_held(pairs) if "bias" not in name}
    assert stacks
    assert all(weight.input is not None for weight in stacks.values())
    expected = logits(pairs)
    bs.save(pairs, path / "model.safetensors")
    assert torch.equal(logits(bs.load(build(kind), path / "model.safetensors")), expected)
    floats.save_pretrained(path / "floats")
    bs.quantize_directory(path / "floats", path / "codes", WHOLE)
    assert torch.equal(logits(bs.load(build(kind), path / "codes")), expected)
    experts = bs.Recipe(rules=dict.fromkeys(stacks, PAIR))
    ledger = bs.calibrate(learned, IDS, experts, weight="gptq", progress=False)
    found = [ledger[name].details.startswith("weight by gptq") for name in stacks]
    assert all("tokens per expert" in ledger[name].details for name in stacks)
    try:
        bs.calibrate(floats, IDS, experts, weight="gptq", experts="all", progress=False)
        everywhere = "yes"
    except ValueError as error:
        assert "cannot be sent all tokens" in str(error)
        everywhere = "no, by name"
    return ["yes", "yes", "yes" if all(found) else "no", everywhere]


def table() -> dict[str, list[str]]:
    """{family: its cells} of the page."""
    lines = re.findall(r"^\| `(\w+)` \| (.+) \|$", DOCS.read_text(), re.MULTILINE)
    return {kind: [cell.strip() for cell in rest.split("|")] for kind, rest in lines}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", EACH)
def test_the_page_is_right(kind: str, tmp_path: pathlib.Path) -> None:
    assert table()[kind] == works(kind, tmp_path)


def test_every_family_is_in_the_table() -> None:
    assert FAMILIES.keys() <= table().keys()


def main() -> None:
    """Print the lines of the table."""
    import tempfile

    warnings.simplefilter("ignore")
    for kind in FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            cells: Any = works(kind, pathlib.Path(folder))
        print(f"| `{kind}` | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
