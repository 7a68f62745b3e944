# SPDX-License-Identifier: BSD-3-Clause
"""A search's file, and files that only look like one."""

import json

import pytest

from blockscale.files.metadata import FileError
from blockscale.reporting.model.search import is_search, read_search
from tests.reporting.model.conftest import SEARCH


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
        ({"points": [{"bits": "4", "quality": 1}]}, "no number"),
        ({"points": [{"quality": 4}]}, "bits is None"),
        ({"uniform": 3}, "no list"),
        ({"chosen": {"bits": "4"}}, "no number"),
        ({"chosen": 4}, "expected a JSON object"),
        ({"points": [{"bits": True, "quality": 1}]}, "no number"),
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
