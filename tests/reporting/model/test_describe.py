# SPDX-License-Identifier: BSD-3-Clause
"""Everything that a page shows, as plain data."""

import hashlib
import json

import pytest
import torch
from safetensors.torch import save_file

from blockscale.core.work import Progress
from blockscale.export.checkpoints.comparing import compare
from blockscale.files.inspect import inspect
from blockscale.files.metadata import FileError
from blockscale.reporting.model import describe as describing
from blockscale.reporting.model.describe import describe, ledger_data


@pytest.fixture(scope="module")
def found(model, source):
    return describe(model, source=source)


@pytest.mark.slow
def test_errors_are_those_of_compare(found, model, source):
    lines = {line["name"]: line for line in found["tensors"] if line["quantized"]}
    others = {each.name: each for each in compare(source, model).differences}
    assert lines.keys() == {n for n, each in others.items() if each.b != each.a}
    for name, line in lines.items():
        assert line["sqnr"] == pytest.approx(others[name].sqnr, rel=1e-9), name
        assert line["max_error"] == others[name].max_error


def test_totals_are_those_of_inspect(found, model):
    total = inspect(model).total
    assert found["totals"]["bytes"] == total.nbytes
    assert found["totals"]["bits"] == total.bits
    assert found["totals"]["elements"] == total.elements
    assert sum(each["bytes"] for each in found["totals"]["formats"]) == total.nbytes


def test_every_file_is_named_with_its_digest(found, model, source):
    for part, folder in (("model", model), ("source", source)):
        files = {each["name"]: each for each in found[part]["files"]}
        assert files.keys() == {path.name for path in folder.glob("*.safetensors")}
        for name, each in files.items():
            content = (folder / name).read_bytes()
            assert each["bytes"] == len(content)
            assert each["sha256"] == hashlib.sha256(content).hexdigest()
    assert found["command"] == f"blockscale report {model} --source {source}"


def test_it_is_plain_json_and_histograms_count_everything(found):
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    drawn = [line for line in found["tensors"] if "histogram" in line]
    assert len(drawn) == found["totals"]["quantized"]["tensors"]
    for line in drawn:
        each, count = line["histogram"], torch.Size(line["shape"]).numel()
        assert sum(each.get("values") or each["codes"]) == count
        assert sum(each["weights"]) + each["beyond"] == count


def test_without_a_source_there_are_no_errors(model):
    found = describe(model)
    assert "source" not in found
    assert all("sqnr" not in line for line in found["tensors"])
    assert any("at_ends" in line for line in found["tensors"])


def test_a_source_that_fits_in_part_is_noted(model, tmp_path):
    save_file({"head.weight": torch.zeros(50, 40)}, tmp_path / "some.safetensors")
    lines = {line["name"]: line for line in describe(model, source=tmp_path)["tensors"]}
    assert "sqnr" in lines["head.weight"]
    assert "no tensor of this name" in lines["embed.weight"]["note"]


def test_progress_ends_where_it_said(model, source):
    class Heard(Progress):
        total, done = 0, 0

        def start(self, total, done=0):
            self.total = total

        def advance(self, name="", amount=1):
            self.done += amount

    heard = Heard()
    describe(model, source=source, progress=heard)
    assert heard.done == heard.total > 0


def test_the_largest_are_listed_and_the_worst_drawn(model, source, found, monkeypatch):
    monkeypatch.setattr(describing, "ROWS", 6)
    monkeypatch.setattr(describing, "HISTOGRAMS", 2)
    few = describe(model, source=source)
    assert len(few["tensors"]) == 6
    assert few["unlisted"] == len(found["tensors"]) - 6
    assert few["totals"] == found["totals"]
    sizes = sorted((line["bytes"] for line in found["tensors"]), reverse=True)
    assert sorted((line["bytes"] for line in few["tensors"]), reverse=True) == sizes[:6]
    drawn = {line["sqnr"] for line in few["tensors"] if "histogram" in line}
    assert drawn == set(sorted(line["sqnr"] for line in few["tensors"] if "sqnr" in line)[:2])


def test_a_search_alone(search):
    found = describe(None, search=search)
    assert "tensors" not in found
    assert found["command"] == f"blockscale report {search}"
    assert found["title"] == "search.json"
    assert found["search"]["sha256"] == hashlib.sha256(search.read_bytes()).hexdigest()


@pytest.mark.parametrize("given", [{}, {"source": "x"}])
def test_a_report_is_about_something(given, search):
    more = {"search": search} if given else {}
    with pytest.raises(ValueError, match="model"):
        describe(None, **given, **more)


# Ledgers of directories, and files that only look like them.


def write(folder, **changes):
    entry = {"name": "a.weight", "kind": "matrix", "status": "quantized", "weight": "int8"}
    data = {"entries": [entry | changes.pop("entry", {})], "unmatched": []} | changes
    (folder / "blockscale_ledger.json").write_text(json.dumps(data))
    return folder


def test_it_is_the_directorys(model):
    told = ledger_data(model)
    listed = json.loads((model / "blockscale_ledger.json").read_text())
    statuses = [entry["status"] for entry in listed["entries"]]
    assert told["counts"] == {s: statuses.count(s) for s in ("quantized", "kept", "skipped")}
    assert sum(each["count"] for each in told["groups"]) == len(statuses)
    assert told["bytes_after"] == listed["bytes_after"]
    assert told["command"].startswith("blockscale quantize ")
    assert "--recipe" in told["command"]


def test_files_and_directories_without_one_have_none(model, source):
    assert ledger_data(source) is None
    assert ledger_data(next(model.glob("*.safetensors"))) is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"entries": "no"}, "lists no entries: blockscale did not write this ledger"),
        ({"entries": [3]}, "expected a JSON object"),
        ({"entry": {"name": 3}}, "the name of 3 is not text"),
        ({"entry": {"status": "lost"}}, "none of"),
        ({"entry": {"bytes_after": -1}}, "not a count"),
        ({"entry": {"bytes_after": True}}, "not a count"),
        ({"entry": {"notes": "x"}}, "not a list"),
    ],
)
def test_what_is_no_ledger_is_refused(tmp_path, changes, said):
    with pytest.raises(FileError, match=said):
        ledger_data(write(tmp_path, **changes))


def test_a_field_of_a_later_version_is_passed_over(tmp_path):
    assert ledger_data(write(tmp_path, entry={"later": 1}))["counts"]["quantized"] == 1


def test_names_are_printable(tmp_path):
    told = ledger_data(write(tmp_path, entry={"name": "a\x1b[31m\u202eb", "notes": ["x\x07"]}))
    text = json.dumps(told, ensure_ascii=False)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert told["notes"] == ["note: a\\x1b[31m\\u202eb: x\\x07"]
