# SPDX-License-Identifier: BSD-3-Clause
"""A model that `bs.save` has written."""

from pathlib import Path

import pytest

import blockscale as bs
from tests.support.saved import quantized


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of the quantized Net."""
    bs.save(quantized(), tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"
