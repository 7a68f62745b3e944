# SPDX-License-Identifier: BSD-3-Clause
"""Figures for papers: which there are, that they are whole, and the same each time."""

import json

import pytest

from blockscale.files.metadata import FileError
from blockscale.reporting.model import figures as drawing
from blockscale.reporting.model.describe import describe
from blockscale.reporting.model.figures import KINDS, check_folder, draw, is_search, read_search
from tests.reporting.model.conftest import SEARCH

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


LONG = "model.language_model.layers.11.block_sparse_moe.experts.7.w2.weight_of_a_long_name"


def wide(drawn):
    """Whether a text of a figure reaches over its edge, measured by matplotlib itself."""
    figure = drawing.figure_of(drawn)
    figure.draw_without_rendering()
    inside = figure.bbox
    boxes = [
        text.get_window_extent() for text in drawing.texts_of(figure.axes[0]) if text.get_text()
    ]
    assert len(boxes) >= 2
    return any(
        box.x0 < inside.x0 or box.x1 > inside.x1 or box.y0 < inside.y0 or box.y1 > inside.y1
        for box in boxes
    )


@pytest.mark.slow
def test_no_label_is_cut():
    needed()
    tensors = [
        {"name": LONG, "format": f"e2m1:block{n}x2x8:(e4m3:block4x4x4:fp32):stochastic", "sqnr": n}
        for n in range(1, 9)
    ]
    assert not wide(lambda axes: drawing._dots(axes, tensors, "sqnr", "SQNR (dB)", 1.0))
    line = {
        "name": LONG, "format": tensors[0]["format"], "bytes": 4,
        "histogram": {"from": -2.0, "to": 2.0, "codes": [1, 3]},
    }  # fmt: skip
    assert not wide(lambda axes: drawing._histogram(axes, line, [-1.0, 1.0]))
    points = [
        {"bits": bits, "quality": bits / 9, "kind": "searched", "name": "a recipe of 20 letter"}
        for bits in (2.0, 4.0, 8.0)
    ]
    measure = "mean cosine of the sentence embeddings to those of the float model"
    assert not wide(lambda axes: drawing._pareto(axes, {"points": points, "measure": measure}))


def test_formats_are_shown_by_their_names():
    needed()
    tensors = [{"name": "a", "format": "e2m1:group16:e4m3", "sqnr": 1.0}]
    figure = drawing.figure_of(lambda axes: drawing._dots(axes, tensors, "sqnr", "SQNR (dB)", 1.0))
    assert "nvfp4" in [text.get_text() for text in drawing.texts_of(figure.axes[0])]


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


# A search's file, and files that only look like one.


def test_it_is_read_by_bits(search):
    found = read_search(search)
    assert [point["bits"] for point in found["points"]] == [4.25, 4.5, 8.25]
    assert [point["name"] for point in found["points"]] == ["mxfp4", "", ""]
    assert [p["kind"] for p in found["points"]] == ["uniform", "searched", "searched"]
    assert (found["measure"], found["chosen"], found["unmeasured"]) == ("cosine", 4.5, 1)
    assert json.loads(found["points"][0]["recipe"]) == {"weight": "mxfp4"}
    assert found["layers"][0]["candidates"][1] == {"format": "mxfp8", "bits": 8.25, "sqnr": 30.25}
    assert found["command"] == SEARCH["command"]
    assert found["hardware"] == SEARCH["hardware"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"points": None}, "no points"),
        ({"points": [{"bits": "4", "quality": 1}]}, "bits is '4', expected a number"),
        ({"points": [{"quality": 4}]}, "bits is None"),
        ({"uniform": 3}, "not a list"),
        ({"chosen": {"bits": "4"}}, "chosen point: bits is '4', expected a number"),
        ({"chosen": 4}, "expected a JSON object"),
        ({"points": [{"bits": True, "quality": 1}]}, "bits is True, expected a number"),
        ({"layers": [{"name": "a"}]}, "candidates"),
        ({"layers": [{"name": "a", "candidates": [{"bits": None}]}]}, "bits is None"),
        ({"layers": [3]}, "expected a JSON object"),
    ],
)
def test_what_is_no_search_is_refused(tmp_path, change, said):
    (tmp_path / "s.json").write_text(json.dumps(SEARCH | change))
    with pytest.raises(FileError, match=said):
        read_search(tmp_path / "s.json")


def test_a_model_is_no_search():
    assert is_search("a/search.json")
    assert not is_search("a/model.safetensors")
    assert not is_search("a/model")
