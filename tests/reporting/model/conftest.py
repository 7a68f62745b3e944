# SPDX-License-Identifier: BSD-3-Clause
"""A model's directory, its quantized copy, and what a search of it could have found."""

import json
import warnings

import pytest

from blockscale.core.recipe import Recipe
from blockscale.files.directory.quantize_directory import quantize_directory
from tests.support.file_models import tiny_tensors, write_model

RULES = {"layers.0.*": {"weight": "int8_channel"}, "head": {"weight": "nf4"}}
SEARCH = {
    "quality": "cosine",
    "points": [
        {"bits": 4.5, "quality": 0.98, "recipe": {"weight": "nvfp4"}, "name": ""},
        {"bits": 8.25, "quality": 0.999, "recipe": {"weight": "mxfp8"}},
        {"bits": 3.0, "quality": None, "recipe": {"weight": "int2"}},
    ],
    "uniform": [{"bits": 4.25, "quality": 0.97, "recipe": {"weight": "mxfp4"}, "name": "mxfp4"}],
    "chosen": {"bits": 4.5, "quality": 0.98, "recipe": {"weight": "nvfp4"}},
    "layers": [
        {
            "name": "layers.0.proj.weight",
            "candidates": [
                {"format": "mxfp4", "bits": 4.25, "sqnr": 18.5},
                {"format": "mxfp8", "bits": 8.25, "sqnr": 30.25},
            ],
        }
    ],
    "command": "blockscale search model --budget 4.5",
    "hardware": {"processor": "one that was made up"},
    "versions": {"torch": "2.13.0"},
}


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    write_model(folder / "model", tiny_tensors(), 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        quantize_directory(
            folder / "model", folder / "out", Recipe("mxfp4", rules=RULES, skip=["conv1d"])
        )
    return folder / "out"


@pytest.fixture(scope="session")
def source(model):
    return model.parent / "model"


@pytest.fixture
def search(tmp_path):
    path = tmp_path / "search.json"
    path.write_text(json.dumps(SEARCH))
    return path
