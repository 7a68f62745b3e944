# SPDX-License-Identifier: BSD-3-Clause
"""`bs.report`: what it writes, and what it leaves as it was."""

import math

import pytest

import blockscale as bs
from blockscale.core.work.progress import Progress
from blockscale.evaluation.evaluation import Evaluation
from blockscale.evaluation.figures import Figure
from blockscale.reporting.model import page as making
from blockscale.reporting.model import report as reporting


def test_a_page_appears_whole(model, source, tmp_path):
    out = tmp_path / "report.html"
    data = bs.report(model, out, source=source)
    text = out.read_text()
    assert text.startswith("<!doctype html>")
    assert text.rstrip().endswith("</html>")
    assert data["model"]["files"][0]["sha256"] in text
    assert list(tmp_path.iterdir()) == [out]


def test_stopped_it_leaves_what_was_there(model, tmp_path):
    class Stop(Progress):
        def advance(self, name="", amount=1):
            raise KeyboardInterrupt

    out = tmp_path / "report.html"
    out.write_text("mine")
    with pytest.raises(KeyboardInterrupt):
        bs.report(model, out, progress=Stop())
    assert out.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [out]


def test_errors_come_before_the_work(model, search, tmp_path, monkeypatch):
    def never(*_, **__):
        raise AssertionError("it began to work")

    monkeypatch.setattr(reporting, "describe", never)
    with pytest.raises(ValueError, match="create it first"):
        bs.report(model, tmp_path / "no" / "report.html")
    with pytest.raises(ValueError, match="is a directory"):
        bs.report(model, tmp_path)
    with pytest.raises(ValueError, match="both searches"):
        bs.report(search, search=search)
    monkeypatch.setattr(making, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="jinja2"):
        bs.report(model, tmp_path / "report.html")


def test_a_search_alone(search, tmp_path):
    data = bs.report(search, tmp_path / "s.html")
    assert len(data["search"]["points"]) == 3
    assert "chart-pareto" in (tmp_path / "s.html").read_text()


def test_an_evaluation_stands_on_the_page(model, tmp_path):
    path, out = tmp_path / "e.json", tmp_path / "report.html"
    figures = {"loss added": Figure(0.12346, 0.01, 16, 8176.0), "kl": Figure(0.5, math.nan, 1, 9.0)}
    Evaluation("next-token", figures).save(path)
    data = bs.report(model, out, evaluation=path)
    assert data["evaluation"]["loss added"]["mean"] == 0.12346
    text = out.read_text()
    assert ">0.1235<" in text and ">–<" in text
    path.write_text("{}")
    with pytest.raises(ValueError, match="is no evaluation"):
        bs.report(model, tmp_path / "other.html", evaluation=path)
    assert not (tmp_path / "other.html").exists()


def test_what_is_no_model_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(bs.FileError, match="unrecognised checkpoint format"):
        bs.report(tmp_path / "empty", tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()
