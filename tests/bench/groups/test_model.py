# SPDX-License-Identifier: BSD-3-Clause
"""The model's case: times, and cosines to fp32's embeddings."""

import copy
from dataclasses import replace

import pytest

from blockscale.bench.groups import model
from blockscale.demo import minilm
from tests.support.bench_runs import SETTINGS, measured


@pytest.fixture
def one_layer(monkeypatch):
    """Of the model's six: tracing and lowering all of them takes seconds."""
    short = copy.deepcopy(model._model("cpu"))
    short.encoder.layer = short.encoder.layer[:1]
    monkeypatch.setattr(model, "_model", lambda device: short)


@pytest.mark.slow
def test_the_model(one_layer):
    [case] = measured(replace(SETTINGS, only="model/"))
    fp32, *ours = case["contestants"]
    assert fp32["relative"] == 1
    names = [line["name"] for line in ours]
    assert names[0] == "int8_channel x int8_token"
    lowered = [name for name in names if ", lowered to " in name]
    assert names == [names[0], *lowered]
    assert len(lowered) + len(case["skipped"]) == 2  # each target, or why it does not run here
    assert all(0.9 < line["cosine"] < 1 for line in ours)


@pytest.mark.slow
def test_the_model_and_its_peers():
    [case] = measured(replace(SETTINGS, peers=True, only="model/"))
    fp32, *others = case["contestants"]
    kinds = [line["kind"] for line in case["contestants"]]
    assert kinds == ["ceiling", *["ours"] * (len(kinds) - 5), *["peer"] * 4]
    names = [line["name"] for line in others]
    assert "onnxruntime quantize_dynamic int8" in names
    assert "int8_channel x uint8:tensor:fp32:asym, as ONNX in onnxruntime" in names
    assert fp32["relative"] == 1
    for line in others:
        assert 0.8 < line["cosine"] <= 1.000001
        assert line["relative"] == pytest.approx(line["seconds"] / fp32["seconds"])


def test_text_without_padding():
    """As many tokens as asked for, and each row closes as the tokenizer closes one."""
    given = model.tokens(3, 16)
    assert {name: tuple(each.shape) for name, each in given.items()} == {
        "input_ids": (3, 16), "token_type_ids": (3, 16), "attention_mask": (3, 16),
    }  # fmt: skip
    assert bool((given["attention_mask"] == 1).all())
    whole = minilm.tokenize(minilm.directory(), ["A sentence."])["input_ids"]
    assert given["input_ids"][:, -1].tolist() == [int(whole[0, -1])] * 3
    assert len({tuple(row) for row in given["input_ids"].tolist()}) == 3


def test_without_its_package(monkeypatch):
    monkeypatch.setattr(model, "_NEEDS", ("no_such_package",))
    [case] = measured(replace(SETTINGS, only="model/"))
    assert case["contestants"] == []
    [skipped] = case["skipped"]
    assert skipped["reason"].startswith("no_such_package is not installed: pip install")


def test_formats_that_it_does_not_use_leave_it_out():
    assert not list(model.cases(replace(SETTINGS, formats=("mxfp4",))))
    assert len(list(model.cases(replace(SETTINGS, formats=("int8_channel",))))) == 1
