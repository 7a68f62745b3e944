# SPDX-License-Identifier: BSD-3-Clause
"""The ledger of a directory: what it says of computed weights and of their parts."""

from pathlib import Path

import torch

import blockscale as bs
from tests.support.directory_models import several, trained
from tests.support.file_models import write_model


def test_a_rule_and_a_skip(tmp_path: Path) -> None:
    """What is skipped keeps its parts, and computes its weight as before."""
    recipe = bs.Recipe("mxfp4", rules={"1.weight": "int8"}, skip=["0", "*9.weight"])
    model = trained(several, torch.float32)
    write_model(tmp_path / "float", model.state_dict())
    ledger = bs.quantize_directory(tmp_path / "float", tmp_path / "out", recipe, strict=True)
    assert ledger["1.weight"].weight.startswith("int8")
    kept = ledger["0.parametrizations.weight.original1"]
    assert (kept.status, kept.reason) == ("kept", "pattern '0' of the recipe")
    found = bs.load(several().eval(), tmp_path / "out")
    assert torch.equal(found[0].weight, model[0].weight)
    assert torch.equal(found[9].weight, model[9].weight)


def test_the_ledger_counts_the_parts(tmp_path: Path) -> None:
    model = trained(several, torch.float32)
    write_model(tmp_path / "float", model.state_dict())
    ledger = bs.quantize_directory(tmp_path / "float", tmp_path / "out", "mxfp4")
    tensors = model.state_dict().values()
    assert sum(each.bytes_before for each in ledger) == sum(each.nbytes for each in tensors)
    assert sum(each.elements for each in ledger) == sum(each.numel() for each in tensors)
    assert ledger["0.weight"].details == "weight_norm folded into the weight"
