# SPDX-License-Identifier: BSD-3-Clause
"""Everything that a page shows, as plain data."""

import hashlib
import json

import pytest
import torch
from safetensors.torch import save_file

from blockscale.core.work.progress import Progress
from blockscale.export.checkpoints.comparing import compare
from blockscale.files.inspect import inspect
from blockscale.reporting.model import describe as describing
from blockscale.reporting.model.describe import describe


@pytest.fixture(scope="module")
def found(model, source):
    return describe(model, source=source)


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
