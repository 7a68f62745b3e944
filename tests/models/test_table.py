# SPDX-License-Identifier: BSD-3-Clause
"""The table survives whatever a model does, and goes on where it stopped."""

import json
import os
import time

import pytest

from tests.models import table


def crashing(name, cells, to):
    os._exit(3)


def endless(name, cells, to):
    time.sleep(60)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(table, "PRELOADED", [])


def test_a_process_that_dies_is_a_result():
    found = table.in_process("nn_mlp", ["share"], worker=crashing)
    assert found["cells"] == {"share": [False, "the process ended: 3"]}


def test_a_process_that_does_not_end_is_a_result():
    found = table.in_process("nn_mlp", ["share"], seconds=0.2, worker=endless)
    assert found["cells"] == {"share": [False, "not done after 0.2 s"]}


def test_it_writes_a_row_and_goes_on_from_there(tmp_path, monkeypatch, capsys):
    path, done = tmp_path / "models.json", []

    def row(name, cells, seconds):
        done.append(name)
        return {"library": "torch", "parameters": 1, "cells": {c: [True, name] for c in cells}}

    monkeypatch.setattr(table, "in_process", row)
    some = {name: table.models()[name] for name in ("nn_mlp", "nn_lstm", "nn_gru")}
    monkeypatch.setattr(table, "models", lambda: some)
    table.main(["nn_gru", "--output", str(path), "--cells", "share"])
    assert list(json.loads(path.read_text())) == ["nn_gru"]
    table.main(["--output", str(path)])
    assert done == ["nn_gru", "nn_mlp", "nn_lstm"]
    assert list(json.loads(path.read_text())) == ["nn_mlp", "nn_lstm", "nn_gru"]
    table.main(["nn_gru", "--output", str(path), "--cells", "lora"])
    assert json.loads(path.read_text())["nn_gru"]["cells"] == {
        "share": [True, "nn_gru"],
        "lora": [True, "nn_gru"],
    }
    assert "1/1 nn_gru" in capsys.readouterr().out


def test_a_model_that_is_not_installed_is_named(tmp_path, monkeypatch, capsys):
    model = table.models()["nn_mlp"]
    monkeypatch.setattr(type(model), "missing", property(lambda self: "needs x"))
    table.main(["nn_mlp", "--output", str(tmp_path / "m.json")])
    assert "nn_mlp: needs x" in capsys.readouterr().err
    assert not (tmp_path / "m.json").exists()
