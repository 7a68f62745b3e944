# SPDX-License-Identifier: BSD-3-Clause
"""Ledgers of directories, and files that only look like them."""

import json

import pytest

from blockscale.files.metadata import FileError
from blockscale.reporting.model.told import told_ledger


def write(folder, **changes):
    entry = {"name": "a.weight", "kind": "matrix", "status": "quantized", "weight": "int8"}
    data = {"entries": [entry | changes.pop("entry", {})], "unmatched": []} | changes
    (folder / "blockscale_ledger.json").write_text(json.dumps(data))
    return folder


def test_it_is_the_directorys(model):
    told = told_ledger(model)
    listed = json.loads((model / "blockscale_ledger.json").read_text())
    statuses = [entry["status"] for entry in listed["entries"]]
    assert told["counts"] == {s: statuses.count(s) for s in ("quantized", "kept", "skipped")}
    assert sum(each["count"] for each in told["groups"]) == len(statuses)
    assert told["bytes_after"] == listed["bytes_after"]
    assert told["command"].startswith("blockscale quantize ")
    assert "--recipe" in told["command"]


def test_files_and_directories_without_one_have_none(model, source):
    assert told_ledger(source) is None
    assert told_ledger(next(model.glob("*.safetensors"))) is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"entries": "no"}, "no ledger"),
        ({"entries": [3]}, "expected a JSON object"),
        ({"entry": {"name": 3}}, "no text"),
        ({"entry": {"status": "lost"}}, "none of"),
        ({"entry": {"bytes_after": -1}}, "no count"),
        ({"entry": {"bytes_after": True}}, "no count"),
        ({"entry": {"notes": "x"}}, "no list"),
    ],
)
def test_what_is_no_ledger_is_refused(tmp_path, changes, said):
    with pytest.raises(FileError, match=said):
        told_ledger(write(tmp_path, **changes))


def test_a_field_of_a_later_version_is_passed_over(tmp_path):
    assert told_ledger(write(tmp_path, entry={"later": 1}))["counts"]["quantized"] == 1


def test_names_are_printable(tmp_path):
    told = told_ledger(write(tmp_path, entry={"name": "a\x1b[31m\u202eb", "notes": ["x\x07"]}))
    text = json.dumps(told, ensure_ascii=False)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert told["notes"] == ["note: a\\x1b[31m\\u202eb: x\\x07"]
