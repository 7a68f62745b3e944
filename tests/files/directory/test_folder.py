# SPDX-License-Identifier: BSD-3-Clause
"""Folders of our own: locks, sizes, mounts, deleting."""

import errno
import fcntl
import os

import pytest

from blockscale.files.directory import folder
from blockscale.files.directory.folder import disk_bytes, hold_lock, is_held, mounts_in, remove
from blockscale.files.metadata import FileError


def test_sizes_do_not_follow_links(tmp_path, monkeypatch):
    """A planted link is not walked, however large what it leads to."""
    large, work = tmp_path / "large", tmp_path / "work"
    (large / "deep").mkdir(parents=True)
    (large / "deep" / "file").write_bytes(b"x" * 1_000_000)
    work.symlink_to(large)
    assert disk_bytes(work) < 100_000 < disk_bytes(large)
    work.unlink()
    work.mkdir()
    (work / "out").symlink_to(large)
    (work / "file").symlink_to(large / "deep" / "file")
    assert disk_bytes(work) < 100_000
    (work / "mine").write_bytes(b"x" * 500_000)
    assert disk_bytes(work) >= 500_000
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    assert disk_bytes(work) == 0 == disk_bytes(tmp_path / "nothing")


def test_locks(tmp_path):
    work = tmp_path / "work"
    assert not is_held(work)
    with hold_lock(work):
        assert is_held(work)
        with pytest.raises(FileError, match="another process is writing"), hold_lock(work):
            pass
    assert not is_held(work)
    (work / "lock").unlink()
    (work / "lock").symlink_to(tmp_path / "victim")
    assert is_held(work)  # nobody can tell
    with pytest.raises(OSError, match="lock"), hold_lock(work):
        pass
    assert not (tmp_path / "victim").exists()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_disk_without_locks(tmp_path, monkeypatch, code):
    """It is written to, with a warning; what may be at work is never deleted."""

    def flock(file, how):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    work = tmp_path / "work"
    with pytest.warns(UserWarning, match="has no locks .*: start no second one"), hold_lock(work):
        assert is_held(work)
    assert (work / "lock").is_file()


def test_a_lock_that_fails_otherwise_is_an_error(tmp_path, monkeypatch):
    def flock(file, how):
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(OSError, match="the disk is broken"), hold_lock(tmp_path / "work"):
        pass


def test_removing(tmp_path):
    """A pipe does not wait for a writer, and what a link leads to stays."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    for name in ("pipe", "link", "nothing"):
        remove(tmp_path / name)
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]
    remove(tmp_path / "folder")
    assert not list(tmp_path.iterdir())


def test_mounts(tmp_path, monkeypatch):
    table = tmp_path / "mountinfo"
    place = tmp_path / "a b"
    place.mkdir()
    line = "36 35 98:0 / {} rw,noatime master:1 - ext3 /dev/root rw\n"
    inside = f"{tmp_path}/a\\040b/in".replace(" ", "\\040")
    table.write_text(line.format("/") + line.format(inside) + line.format(f"{tmp_path}/a"))
    monkeypatch.setattr(folder, "_MOUNTS", table)
    assert mounts_in(place) == [place / "in"] and mounts_in(place / "in") == [place / "in"]
    assert mounts_in(place / "other") == []
    (tmp_path / "link").symlink_to(place)
    assert mounts_in(tmp_path / "link") == []  # a link can be renamed
    with pytest.raises(FileError, match="is a mount point: unmount it, then delete"):
        remove(place)
    assert place.is_dir()
    monkeypatch.setattr(folder, "_MOUNTS", tmp_path / "nothing")
    assert mounts_in(place) == [] and mounts_in(tmp_path.anchor) == [folder.Path("/")]
