# SPDX-License-Identifier: BSD-3-Clause
"""torchvision and timm are found beside the environment, and nobody else finds them there."""

import sys

import pytest

from tests.models import outside

needed = pytest.mark.skipif(bool(outside.missing("timm")), reason=outside.missing("timm"))


@pytest.mark.slow
@needed
def test_both_are_imported_and_the_path_is_as_before():
    before = list(sys.path)
    assert outside.timm().create_model and outside.torchvision().models
    assert sys.path == before


@pytest.mark.slow
@needed
def test_transformers_does_not_take_them_for_its_own():
    outside.timm()
    from transformers.utils import is_timm_available, is_torchvision_available

    assert not is_torchvision_available()
    assert not is_timm_available()


def test_what_is_not_there_is_said_with_what_helps():
    assert outside.missing("torch") == ""
    assert "make test" in outside.missing("no_such_package")


def test_without_the_folder_they_are_missing(monkeypatch):
    if outside.folder() is None:
        pytest.skip(outside.missing("timm"))
    monkeypatch.setattr(outside, "folder", lambda: None)
    monkeypatch.setitem(sys.modules, "timm", None)
    monkeypatch.setattr(outside.importlib.util, "find_spec", lambda name: None)
    assert "requirements/models.txt" in outside.missing("timm")
