# SPDX-License-Identifier: BSD-3-Clause
"""Targets are found by their files' names; each says what it writes and whether it can."""

import inspect
import pkgutil
import sys
from pathlib import Path

import pytest

import blockscale as bs
from tests.support import fresh

ROOT = Path(__file__).parents[2]


def test_every_target():
    """These hold for whatever file is added to blockscale/export/."""
    targets = bs.export.targets()
    assert "program" in [target.name for target in targets]
    files = {module.name for module in pkgutil.iter_modules(bs.export.__path__)}
    for target in targets:
        assert f"to_{target.name}" in files
        function = getattr(bs.export, target.name)
        assert inspect.isfunction(function)
        assert list(inspect.signature(function).parameters)[1] in ("path", "directory")
        assert target.about.endswith("."), f"{target.name}: a sentence in its first line"
        assert target.unavailable is None or len(target.unavailable) > 10


def places(kind):
    """The targets that write a file ("path") or a directory."""
    named = [target.name for target in bs.export.targets()]
    return [n for n in named if kind in inspect.signature(getattr(bs.export, n)).parameters]


@pytest.mark.parametrize("name", places("directory"))
def test_a_file_is_no_directory(name, tmp_path):
    """Every target that writes a directory refuses it, and one that holds something."""
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="is a file: name a directory to write"):
        getattr(bs.export, name)(None, tmp_path / "file")
    with pytest.raises(ValueError, match="exists and is not empty"):
        getattr(bs.export, name)(None, tmp_path)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("name", places("path"))
def test_a_directory_is_no_file(name, tmp_path):
    """Every target refuses it in the same words, and writes nothing."""
    with pytest.raises(ValueError, match="is a directory: name the file to write"):
        getattr(bs.export, name)(None, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_target_that_is_not_there():
    with pytest.raises(AttributeError, match=r"has no target 'nothing'; choose from .*program"):
        _ = bs.export.nothing


def test_a_target_without_its_package(monkeypatch):
    module = sys.modules["blockscale.export.to_program"]
    monkeypatch.setattr(module, "unavailable", lambda: "torch is not installed", raising=False)
    [target] = [each for each in bs.export.targets() if each.name == "program"]
    assert target.unavailable == "torch is not installed"


@pytest.mark.slow
@pytest.mark.parametrize(
    "statement",
    [
        pytest.param("import blockscale.export.to_program", marks=pytest.mark.slow),
        pytest.param("from blockscale.export.to_program import program", marks=pytest.mark.slow),
        "import blockscale.export.to_program, blockscale.export.to_program as p",
    ],
)
def test_importing_the_file_hides_no_function(statement):
    script = f"{statement}\nimport blockscale as bs\nassert callable(bs.export.program)"
    fresh.run(script, cwd=ROOT, check=True)
