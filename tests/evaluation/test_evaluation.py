# SPDX-License-Identifier: BSD-3-Clause
"""The result: a value that is written, read and shown."""

import json
import math

import pytest

from blockscale.evaluation.evaluation import Evaluation, read
from blockscale.evaluation.figures import Figure

FOUND = Evaluation(
    "next-token",
    {"loss": Figure(2.5, 0.25, 4, 100.0), "kl": Figure(math.nan, math.nan, 1, 0.0)},
    {"loss": (1.0, 2.0)},
    about={"text": "a"},
)


def test_it_is_written_whole_and_read_back(tmp_path):
    path = tmp_path / "e.json"
    FOUND.save(path)
    figures = read(path)
    assert figures["loss"] == FOUND["loss"]
    assert math.isnan(figures["kl"].mean) and figures["kl"].sequences == 1
    assert json.loads(path.read_text())["about"] == {"text": "a"}
    with pytest.raises(ValueError, match="is a directory"):
        FOUND.save(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["e.json"]


def test_it_is_shown():
    lines = str(FOUND).splitlines()
    assert lines[0] == "loss  2.5000 ± 0.2500"
    assert lines[-1] == "4 sequences; ± is the standard error over them"


def test_unknown_figures_are_named():
    with pytest.raises(KeyError, match="unknown figure 'acc'; choose from loss, kl"):
        FOUND["acc"]


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"schema": 2, "figures": {}}',
        '{"schema": 1, "figures": {"a": 3}}',
        '{"schema": 1, "figures": {"a": {"mean": "x", "error": 1, "sequences": 1, "weight": 1}}}',
        '{"schema": 1, "figures": {"a": {"mean": true, "error": 1, "sequences": 1, "weight": 1}}}',
    ],
)
def test_other_files_are_refused_by_name(tmp_path, text):
    path = tmp_path / "e.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"e\.json"):
        read(path)
