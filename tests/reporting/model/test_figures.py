# SPDX-License-Identifier: BSD-3-Clause
"""Figures for papers: which there are, that they are whole, and the same each time."""

import pytest

from blockscale.reporting.model import figures as drawing
from blockscale.reporting.model.describe import describe
from blockscale.reporting.model.figures import KINDS, check_folder, draw

HEADS = {"pdf": b"%PDF-", "svg": b"<?xml", "png": b"\x89PNG"}


@pytest.fixture(scope="module")
def data(model, source):
    return describe(model, source=source)


def needed():
    pytest.importorskip("matplotlib", reason="NO matplotlib: figures are not tested")


def names(folder):
    return sorted({path.stem for path in folder.iterdir()})


@pytest.mark.slow
def test_each_figure_in_each_kind(data, search, tmp_path):
    needed()
    every = data | {"search": describe(None, search=search)["search"]}
    paths = draw(every, tmp_path / "figures")
    drawn = ["error", "histogram-best", "histogram-median", "histogram-worst", "pareto",
             "saturation"]  # fmt: skip
    assert names(tmp_path / "figures") == drawn
    assert len(paths) == len(drawn) * len(KINDS) == len(list((tmp_path / "figures").iterdir()))
    for path in paths:
        assert path.read_bytes().startswith(HEADS[path.suffix[1:]])


@pytest.mark.slow
def test_the_same_data_give_the_same_bytes(data, tmp_path):
    needed()
    some = data | {"tensors": [line for line in data["tensors"] if line["name"] == "embed.weight"]}
    one, other = draw(some, tmp_path / "a"), draw(some, tmp_path / "b")
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in other]
    svg = (tmp_path / "a" / "histogram-worst.svg").read_text()
    assert "embed.weight" in svg  # text stays text


@pytest.mark.slow
def test_names_are_no_mathematics(data, tmp_path):
    """A `$` in a name would be read as TeX, and `\\frac` without an argument stop the figure."""
    needed()
    line = next(each for each in data["tensors"] if each["name"] == "embed.weight")
    draw(data | {"tensors": [line | {"name": r"$\frac$ & <b>"}]}, tmp_path / "a")
    assert r"$\frac$ &amp; &lt;b" in (tmp_path / "a" / "histogram-worst.svg").read_text()


@pytest.mark.slow
def test_without_a_source_there_is_no_error(model, tmp_path):
    needed()
    draw(describe(model), tmp_path / "figures")
    assert names(tmp_path / "figures") == ["histogram-first", "saturation"]


def test_bad_places_are_refused(data, tmp_path, monkeypatch):
    monkeypatch.setattr(drawing, "find_spec", lambda name: True)
    (tmp_path / "file").write_text("mine")
    for place, said in (("file", "is a file"), ("no/figures", "create it first")):
        with pytest.raises(ValueError, match=said):
            check_folder(tmp_path / place)
    with pytest.raises(ValueError, match="nothing to draw"):
        draw({"tensors": []}, tmp_path / "figures")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_without_matplotlib_one_sentence_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(drawing, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"blockscale\[report\]"):
        check_folder(tmp_path)
