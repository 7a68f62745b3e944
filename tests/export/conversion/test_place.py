"""Where results go: what is there stays until the new one is whole."""

from pathlib import Path

import pytest

from blockscale.export.conversion.place import bytes_at, check_target, is_one_file, written
from blockscale.files.directory.beside import old_path
from blockscale.files.directory.folder import is_held
from blockscale.files.metadata import FileError


def test_places_that_cannot_be_taken(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="is what is converted"):
        check_target(source, source, False, True)
    with pytest.raises(ValueError, match="lies in"):
        check_target(tmp_path, source / "model.safetensors", False, True)
    with pytest.raises(ValueError, match="is a file: name a directory"):
        check_target(tmp_path / "file", source, False, True)
    with pytest.raises(ValueError, match="is a directory: name the file"):
        check_target(source, tmp_path / "x", True, True)
    with pytest.raises(ValueError, match="is not a directory: create it first"):
        check_target(tmp_path / "no" / "where", source, False, False)
    with pytest.raises(ValueError, match="exists: choose another place"):
        check_target(tmp_path / "file", source, True, False)
    (tmp_path / "empty").mkdir()
    check_target(tmp_path / "empty", source, False, False)
    check_target(tmp_path / "file", source, True, True)


def test_directories_are_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "there"
    target.mkdir()
    (target / "old").write_text("old")
    with pytest.raises(RuntimeError, match="stop"), written(target, False) as path:
        (path / "new").write_text("half")
        raise RuntimeError("stop")
    assert [each.name for each in target.iterdir()] == ["old"]
    with written(target, False) as path:
        (path / "new").write_text("new")
    assert [each.name for each in target.iterdir()] == ["new"]
    assert [each.name for each in tmp_path.iterdir()] == ["there"]


def test_files_are_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "m.gguf"
    with pytest.raises(RuntimeError, match="stop"), written(target, True) as path:
        path.write_text("half")
        raise RuntimeError("stop")
    assert list(tmp_path.iterdir()) == []
    with written(target, True) as path:
        path.write_text("whole")
    assert target.read_text() == "whole"


def test_two_conversions_at_once_keep_apart(tmp_path: Path) -> None:
    """Each has a work directory of its own, which is locked: `blockscale clean` leaves it alone."""
    target = tmp_path / "there"
    with written(target, False) as path:
        assert is_held(path.parent)
        with written(target, False) as other:
            assert other != path
            (other / "first").write_text("first")
        assert [each.name for each in target.iterdir()] == ["first"]
        (path / "second").write_text("second")
    assert [each.name for each in target.iterdir()] == ["second"]
    assert [each.name for each in tmp_path.iterdir()] == ["there"]


def test_what_a_killed_run_put_aside_is_back_first(tmp_path: Path) -> None:
    target = tmp_path / "there"
    old_path(target, "0123abcd").mkdir()
    (old_path(target, "0123abcd") / "mine").write_text("mine")
    with pytest.raises(ValueError, match="exists: choose another place"):
        check_target(target, tmp_path / "source", False, False)
    assert (target / "mine").read_text() == "mine"


def test_names_that_leave_no_room(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="is too long"):
        check_target(tmp_path / ("n" * 240), tmp_path / "source", False, False)


def test_files_of_a_size(tmp_path: Path) -> None:
    assert is_one_file(True, None) and not is_one_file(True, 1) and not is_one_file(False, None)
    with pytest.raises(ValueError, match="at least one byte, not -1"):
        is_one_file(True, -1)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(bytes(5))
    (tmp_path / "c").write_bytes(bytes(2))
    assert bytes_at(tmp_path) == 7 and bytes_at(tmp_path / "c") == 2
