# SPDX-License-Identifier: BSD-3-Clause
"""The mixture's benchmark, tiny: cells from a model, and the page's table from cells."""

import argparse

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("tokenizers")
from transformers import MixtralForCausalLM

import blockscale as bs
from benchmarks.language_model import mixture
from benchmarks.language_model.model import Trained

TINY = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 2, "num_local_experts": 4,
}  # fmt: skip


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(0)
    model = MixtralForCausalLM(mixture.config(**TINY)).eval()
    stream = torch.arange(400) % 96
    log = mixture.trained_for(model, stream, 2, 16, seconds=0.01)
    assert log["steps"] >= 1 and log["tokens"] == 32 * log["steps"]
    tokens = torch.randint(96, (3, 8, 24), generator=torch.Generator().manual_seed(1))
    return Trained(model, *tokens)


@pytest.mark.slow
def test_cells_and_table(trained):
    counts = mixture.tokens_of_experts(trained)
    assert [sum(each) for each in counts] == [8 * 24 * 2]
    known = {}
    found = {"cells": [
        mixture.measure(trained, known, "mxfp4", algorithm, given)
        for algorithm in ("absmax", "gptq") for given in (None, "mxfp4")
    ]}  # fmt: skip
    assert all(cell["bits"] == 4.25 and 0 < cell["choices"] <= 1 for cell in found["cells"])
    assert "tokens per expert" in next(iter(found["cells"][-1]["experts"].values()))
    told = mixture.table(found).splitlines()
    assert told[2].startswith("| `mxfp4` | float | 4.25 |")
    assert told[3].startswith("| `mxfp4` | `mxfp4` | 4.25 |")
    assert len(told) == 4


@pytest.mark.slow
def test_another_s_model_is_measured_as_ours(trained, monkeypatch):
    monkeypatch.setattr(
        mixture, "by_auto_round", lambda t: mixture.quantized(t, "mxfp4", "absmax", None)[0]
    )
    known = {}
    cell = mixture.measure_peer(trained, known)
    ours = mixture.measure(trained, known, "mxfp4", "absmax", None)
    assert cell["held"] == ours["held"] and cell["choices"] == ours["choices"]
    model = mixture.quantized(trained, "mxfp4", "absmax", None)[0]
    compared = bs.compare(trained.model, model, mixture.batches(trained.held[:8]))
    assert mixture.least_choices(trained, model) == min(each.choices for each in compared.routers)
    assert mixture.key(cell) == ("int4:group32:fp16", None, "AutoRound")
    line = mixture.table({"cells": [cell]}).splitlines()[2]
    assert line.startswith("| AutoRound | float | 4.50 |")


def test_what_is_measured_first(monkeypatch):
    monkeypatch.setattr(mixture, "find_spec", lambda name: None)
    every = mixture.cells(argparse.Namespace(only=None))
    assert len(every) == len(set(every)) == 24
    assert every[:2] == [("int4:group32:fp32", a, None) for a in ("absmax", "gptq")]
    assert all(each[1] == "search" for each in every[14:21])
    monkeypatch.setattr(mixture, "find_spec", lambda name: name)
    assert mixture.cells(argparse.Namespace(only=["*AutoRound"])) == [mixture.PEER]
    some = mixture.cells(argparse.Namespace(only=["mxfp4 x *absmax", "* x int8_token gptq"]))
    assert [mixture.name_of(each) for each in some] == [
        "mxfp4 x float absmax", "mxfp4 x mxfp4 absmax", "int4:group32:fp32 x int8_token gptq",
    ]  # fmt: skip
