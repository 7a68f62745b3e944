# SPDX-License-Identifier: BSD-3-Clause
"""A directory and a model in memory: the same tensors are quantized, to the same bits."""

import warnings

import pytest
from torch import nn

import blockscale as bs
from tests.files.renaming.oracle import differing
from tests.support.file_models import write_model
from tests.support.renaming_cases import CASES
from tests.support.renaming_hub import build, save


@pytest.mark.some(4)
@pytest.mark.parametrize(("name", "fmt"), CASES)
def test_both_flows_give_one_model(name, fmt, tmp_path):
    model = build(name)
    names = list(model.state_dict())
    bs.quantize_directory(save(model, tmp_path / "float"), tmp_path / "quantized", fmt)
    found = bs.load(build(name, 1), tmp_path / "quantized")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bs.quantize_(model, fmt)
    assert differing(found, model, names) == []


def test_routers_stay_in_float_unless_a_rule_names_them(tmp_path):
    """A layer called `gate` that has as many rows as inputs, or `gate_proj`, is no router."""
    rows = {"mlp.gate": 4, "mlp.gate_proj": 8, "attn.gate": 32, "mlp.shared_expert_gate": 1}
    for recipe, kept in (
        (bs.Recipe("mxfp4"), {"mlp.gate", "mlp.shared_expert_gate"}),
        (bs.Recipe("mxfp4", rules={"mlp.gate": "int8"}), {"mlp.shared_expert_gate"}),
    ):
        model = nn.ModuleDict({n: nn.ModuleDict() for n in ("mlp", "attn")})
        for name, count in rows.items():
            owner, _, last = name.partition(".")
            model[owner][last] = nn.Linear(32, count, bias=False)
        folder = write_model(tmp_path / f"float{len(kept)}", model.state_dict())
        ledger = bs.quantize_directory(folder, tmp_path / f"out{len(kept)}", recipe)
        there = {e.name.removesuffix(".weight") for e in ledger if e.status == "kept"}
        here = {e.name for e in bs.quantize_(model, recipe) if e.status == "kept"}
        assert there == here == kept
