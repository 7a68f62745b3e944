# SPDX-License-Identifier: BSD-3-Clause
"""Means over sequences and their standard errors: by hand, by numpy, and at the ends."""

import json
import math

import numpy as np
import pytest
import torch

from blockscale.evaluation.figures import Evaluation, Figure, FigureSums, exponential, read


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def figure(sums, weights):
    held = FigureSums()
    held.add({"x": (sums, weights)})
    return held.figures()["x"]


def test_equal_weights_give_the_mean_and_its_standard_error():
    values = np.random.default_rng(0).normal(size=57)
    found = figure(torch.from_numpy(values), torch.ones(57, dtype=torch.float64))
    assert found.mean == pytest.approx(values.mean(), abs=1e-12)
    assert found.error == pytest.approx(values.std(ddof=1) / math.sqrt(57), rel=1e-12)
    assert (found.sequences, found.weight) == (57, 57.0)


def test_long_sequences_count_as_many_tokens():
    """Two sequences of 1 and 3 tokens: the mean over four tokens, by hand."""
    found = figure(tensor(2.0, 3.0), tensor(1.0, 3.0))
    assert found.mean == 5 / 4
    assert found.error == pytest.approx(math.sqrt(2 * (0.75**2 + 0.75**2)) / 4)


def test_the_error_is_what_a_bootstrap_says():
    rng = np.random.default_rng(1)
    weights = rng.integers(5, 50, 200).astype(float)
    sums = weights * rng.normal(3, 0.5, 200)
    found = figure(torch.from_numpy(sums), torch.from_numpy(weights))
    drawn = rng.integers(0, 200, (2000, 200))
    means = sums[drawn].sum(1) / weights[drawn].sum(1)
    assert found.error == pytest.approx(means.std(), rel=0.08)


def test_batches_add_up_to_one():
    rng = torch.Generator().manual_seed(0)
    sums = torch.rand(9, generator=rng, dtype=torch.float64)
    weights = torch.rand(9, generator=rng, dtype=torch.float64)
    parts = FigureSums()
    for at in (slice(0, 2), slice(2, 3), slice(3, 9)):
        parts.add({"x": (sums[at], weights[at])})
    assert parts.figures()["x"] == figure(sums, weights)


def test_one_sequence_has_no_error_and_no_tokens_no_mean():
    assert math.isnan(figure(tensor(1.0), tensor(2.0)).error)
    nothing = figure(tensor(0.0, 0.0), tensor(0.0, 0.0))
    assert math.isnan(nothing.mean) and nothing.sequences == 2
    assert json.dumps(nothing.to_dict(), allow_nan=False) == (
        '{"mean": null, "error": null, "sequences": 2, "weight": 0.0}'
    )


@pytest.mark.parametrize(
    ("sums", "weights", "words"),
    [
        (tensor(1.0), tensor(1.0, 1.0), "one sum and one weight for each sequence"),
        (torch.ones(2, 2), torch.ones(2, 2), r"found shapes \(2, 2\) and \(2, 2\)"),
        (tensor(1.0), tensor(-1.0), "found the weight -1, expected weights >= 0"),
    ],
)
def test_what_are_no_sums_is_refused(sums, weights, words):
    with pytest.raises(ValueError, match=words):
        FigureSums().add({"x": (sums, weights)})


def test_exponential():
    found = exponential(Figure(2.0, 0.1, 3, 5.0))
    assert found == Figure(math.exp(2), math.exp(2) * 0.1, 3, 5.0)
    assert exponential(Figure(1e6, 0.1, 3, 5.0)).mean == math.inf


# The result: a value that is written, read and shown.

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
