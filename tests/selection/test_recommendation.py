# SPDX-License-Identifier: BSD-3-Clause
"""Small things of a recommendation."""

import pytest

import blockscale as bs
from blockscale.selection.recommendation import counted
from tests.selection.models import CANDIDATES, mlp


def test_counts():
    assert counted(["a", "b", "b", "c"]) == {"b": 2, "a": 1, "c": 1}
    assert counted([]) == {}


def test_a_place_that_cannot_be_written(tmp_path):
    found = bs.recommend(mlp(), 6, candidates=CANDIDATES)
    for path in (tmp_path, tmp_path / "no" / "a.json"):
        with pytest.raises(ValueError, match="choose a file in a directory that exists"):
            found.save(path)
