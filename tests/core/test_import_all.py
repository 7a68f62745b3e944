# SPDX-License-Identifier: BSD-3-Clause
"""Open folders: every file is found, by itself and in the order of names."""

import pathlib
import sys

import pytest

from blockscale.core import import_all


@pytest.fixture
def package(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An importable package of three files and a folder."""
    name_of_package = f"open_{tmp_path.name}"  # another in each test: modules stay imported
    folder = tmp_path / name_of_package
    (folder / "deeper").mkdir(parents=True)
    for name in ("__init__", "zebra", "ant", "deeper/__init__", "deeper/inside"):
        (folder / f"{name}.py").write_text(f"NAME = {name!r}\n")
    (folder / "notes.txt").write_text("no module")
    monkeypatch.syspath_prepend(tmp_path)
    return name_of_package


def test_files_in_order_and_folders_as_one(package: str) -> None:
    path = __import__(package).__path__
    assert [module.NAME for module in import_all(package, path)] == [
        "ant", "deeper/__init__", "zebra"
    ]  # fmt: skip
    assert f"{package}.deeper.inside" not in sys.modules


def test_a_new_file_is_found(package: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / package / "new.py").write_text("NAME = 'new'\n")
    found = import_all(package, __import__(package).__path__)
    assert "new" in [module.NAME for module in found]


def test_a_file_that_fails_is_not_passed_over(package: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / package / "wrong.py").write_text("raise RuntimeError('wrong')\n")
    with pytest.raises(RuntimeError, match="wrong"):
        import_all(package, __import__(package).__path__)
