# SPDX-License-Identifier: BSD-3-Clause
"""Models in small slabs, so that every tensor takes several; what is skipped is expected."""

import warnings
from pathlib import Path

import pytest

from blockscale.files.directory.quantize_directory import quantize_directory
from blockscale.files.slabs import cutting
from tests.files.directory.places import Untouched
from tests.support.file_models import contents, tiny_tensors, write_model


@pytest.fixture(autouse=True)
def _tiny_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "SLAB", 150)
    monkeypatch.setattr(cutting, "BY_KERNEL", 1)
    warnings.simplefilter("ignore", UserWarning)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model's directory, of two shards."""
    return write_model(tmp_path / "model", tiny_tensors(), 2)


@pytest.fixture
def whole(model: Path, tmp_path: Path) -> dict[str, bytes]:
    """The bytes of a run that nothing interrupts."""
    quantize_directory(model, tmp_path / "whole", "nvfp4")
    return contents(tmp_path / "whole")


@pytest.fixture
def place(tmp_path: Path, model: Path) -> Untouched:
    """The same model, with the folder around it."""
    return Untouched(tmp_path, model)
