# SPDX-License-Identifier: BSD-3-Clause
"""Pieces of advice that bs.recommend's own tests do not reach."""

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.selection.candidates import choices, read
from blockscale.selection.recommend import by_weights
from blockscale.selection.recommendation import _of_layers, _random_inputs, _rows, claims_of, count
from tests.selection.models import CANDIDATES, batches, mlp


def test_inputs_are_made_up_for_layers_that_multiply():
    model = nn.Sequential(nn.Linear(16, 8), nn.Conv2d(16, 4, 1), nn.Embedding(20, 64))
    found, _ = choices(model, read(["mxfp4"]))
    made = _random_inputs(found)
    assert [type(module) for module in made] == [nn.Linear]
    assert made[model[0]][0].shape == (64, 16)
    assert torch.equal(made[model[0]][0], _random_inputs(found)[model[0]][0])


def test_no_rows_where_nothing_multiplies():
    model = nn.Sequential(nn.Embedding(20, 64))
    found, _ = choices(model, read(["mxfp4"]))
    assert _rows(found, by_weights(model, read(["mxfp4"]), ()), {"0": "mxfp4"}) == {}


def test_what_a_latency_leaves_to_layers():
    found = by_weights(mlp(), read(CANDIDATES), ())
    assert _of_layers(found, 5.0, 4.0) == 1.0
    with pytest.raises(ValueError, match="the latency cannot be"):
        _of_layers(found, 4.0, 4.0)


# What is claimed: only what was measured.


@pytest.mark.slow
def test_a_claim_of_speed_needs_batches():
    one = bs.recommend(mlp(), 6, candidates=CANDIDATES)
    assert not [each for each in one.claims if "a batch will take" in each.text]
    two = bs.recommend(mlp(), 6, batches=batches(), candidates=CANDIDATES, progress=False)
    [speed] = [each for each in two.claims if "a batch will take" in each.text]
    assert bs.hardware().processor in speed.source
    assert f"{1e3 * two.foretold.seconds:.3f} ms" in speed.text
    assert callable(claims_of)


def test_counts():
    assert count(["a", "b", "b", "c"]) == {"b": 2, "a": 1, "c": 1}
    assert count([]) == {}


@pytest.mark.slow
def test_a_place_that_cannot_be_written(tmp_path):
    found = bs.recommend(mlp(), 6, candidates=CANDIDATES)
    for path in (tmp_path, tmp_path / "no" / "a.json"):
        with pytest.raises(ValueError, match="choose a file in a directory that exists"):
            found.save(path)
