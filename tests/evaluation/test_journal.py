# SPDX-License-Identifier: BSD-3-Clause
"""A journal goes on where a run was stopped, and refuses those of other runs."""

import json

import pytest
import torch
from torch import nn

from blockscale.evaluation.journal import BatchJournal, JournalError, batch_digest, fingerprint
from blockscale.evaluation.kinds import Measurement

ONE = Measurement({"loss": (torch.tensor([0.1, 1 / 3]).double(), torch.ones(2).double())}, {})


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.parts["loss"], b.parts["loss"], strict=True))


def test_what_was_measured_is_read_to_the_bit(tmp_path):
    path = tmp_path / "j.jsonl"
    BatchJournal(path, "run").add("d0", ONE)
    again = BatchJournal(path, "run")
    assert len(again) == 1
    assert same(again.at(0, "d0"), ONE)
    assert again.at(1, "d1") is None
    again.add("d1", ONE)
    assert len(BatchJournal(path, "run")) == 2


def test_without_a_path_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    journal = BatchJournal(None, "run")
    journal.add("d0", ONE)
    assert same(journal.at(0, "d0"), ONE) and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kept", range(1, 40, 7))
def test_a_line_that_a_kill_cut_off_is_measured_again(tmp_path, kept):
    path = tmp_path / "j.jsonl"
    journal = BatchJournal(path, "run")
    journal.add("d0", ONE)
    size = path.stat().st_size
    journal.add("d1", ONE)
    with path.open("rb+") as file:
        file.truncate(size + kept)
    again = BatchJournal(path, "run")
    assert len(again) == 1 and path.stat().st_size == size
    again.add("d1", ONE)
    assert len(BatchJournal(path, "run")) == 2


def test_other_runs_batches_and_files_are_refused(tmp_path):
    path = tmp_path / "j.jsonl"
    BatchJournal(path, "run").add("d0", ONE)
    with pytest.raises(JournalError, match="no journal of this evaluation"):
        BatchJournal(path, "another")
    with pytest.raises(JournalError, match="another batch 0"):
        BatchJournal(path, "run").at(0, "d1")
    kept = path.read_text()
    for text in ("hello\n", "[]\n", "{}\n"):
        path.write_text(text)
        with pytest.raises(JournalError, match="no journal"):
            BatchJournal(path, "run")
        assert path.read_text() == text
    lines = kept.splitlines()
    for wrong in (
        {"batch": "d0"},
        {"batch": "d0", "kind": "", "parts": {"loss": 3}, "positions": {}},
    ):
        path.write_text(f"{lines[0]}\n{json.dumps(wrong)}\n")
        with pytest.raises(JournalError, match="delete the file"):
            BatchJournal(path, "run").at(0, "d0")
    with pytest.raises(ValueError, match="is a directory"):
        BatchJournal(tmp_path, "run")


def test_models_and_batches_are_told_apart():
    torch.manual_seed(0)
    model = nn.Linear(100, 100)
    first = fingerprint(model, None)
    assert fingerprint(model, None) == first != fingerprint(model, model)
    with torch.no_grad():
        model.weight.mul_(2)
    assert fingerprint(model, None) != first
    batch = {"input_ids": torch.arange(6).view(2, 3)}
    assert batch_digest(batch) == batch_digest(dict(batch))
    assert batch_digest(batch) != batch_digest({"input_ids": torch.arange(6).view(3, 2)})
    assert batch_digest((torch.zeros(2), 1)) != batch_digest((torch.zeros(2), 2))
