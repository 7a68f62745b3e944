# SPDX-License-Identifier: BSD-3-Clause
"""A model's directory and its quantized copy."""

import warnings

import pytest

from blockscale.core.recipe import Recipe
from blockscale.files.directory.quantize_directory import quantize_directory
from tests.support.file_models import tiny_tensors, write_model


@pytest.fixture
def folders(tmp_path):
    warnings.simplefilter("ignore", UserWarning)
    model = write_model(tmp_path / "model", tiny_tensors(), 2)
    quantize_directory(model, tmp_path / "out", Recipe("mxfp4", input="int8_token"))
    return model, tmp_path / "out"
