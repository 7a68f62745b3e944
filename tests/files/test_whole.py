# SPDX-License-Identifier: BSD-3-Clause
"""A file is there whole or not at all."""

import os
import stat

import pytest

from blockscale.files.directory.folder import is_held
from blockscale.files.whole import check_new, check_place, written_whole


def test_it_appears_at_the_end(tmp_path):
    path = tmp_path / "file"
    with written_whole(path) as temporary:
        temporary.write_text("new")
        assert not path.exists()
        assert temporary.parent == tmp_path
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file(tmp_path):
    path = tmp_path / "file"
    check_new(path, False)
    path.write_text("old")
    check_new(path, True)
    with pytest.raises(FileExistsError, match="file exists: remove it, or pass overwrite=True"):
        check_new(path, False)


def test_an_error_leaves_what_was(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(KeyError), written_whole(path) as temporary:
        temporary.write_text("half")
        raise KeyError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_before_the_first_byte(tmp_path):
    with pytest.raises(OSError, match="nowhere"), written_whole(tmp_path / "nowhere" / "file"):
        raise AssertionError("there is no such folder")


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_permissions_are_those_of_any_new_file(umask, tmp_path):
    before = os.umask(umask)
    try:
        with written_whole(tmp_path / "file") as temporary:
            temporary.unlink()  # a writer that makes a file of its own, which nobody else may read
            temporary.touch(0o600)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o666 & ~umask


def test_places(tmp_path):
    assert check_place(str(tmp_path / "new"), "a") == tmp_path / "new"
    (tmp_path / "old").touch()
    assert check_place(tmp_path / "old", "a") == tmp_path / "old"  # it is replaced
    with pytest.raises(ValueError, match=r"is a directory: name the file to write, e\.g\. .*/a\.b"):
        check_place(tmp_path, "a.b")
    with pytest.raises(ValueError, match="old is not a directory: create it first"):
        check_place(tmp_path / "old" / "new", "a")


def test_it_is_locked_until_it_has_its_name(tmp_path):
    """Also where a writer puts a file of its own there, once that is done."""
    with written_whole(tmp_path / "file") as temporary:
        assert is_held(temporary)
        (tmp_path / "other").write_text("new")
        (tmp_path / "other").replace(temporary)
    assert not is_held(tmp_path / "file") and (tmp_path / "file").read_text() == "new"


def test_a_writers_own_file_is_locked_while_the_disk_is_waited_for(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(os, "fsync", lambda file: seen.extend(map(is_held, tmp_path.iterdir())))
    with written_whole(tmp_path / "file") as temporary:
        temporary.unlink()
        temporary.write_text("new")
    assert seen == [True]
