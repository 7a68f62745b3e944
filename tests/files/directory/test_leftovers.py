# SPDX-License-Identifier: BSD-3-Clause
"""What killed runs leave: what is safe to delete is, and nothing else."""

import os
import time

import pytest

from blockscale.files.directory import leftovers
from blockscale.files.directory.beside import again_path, gone_path, old_path, work_path
from blockscale.files.directory.folder import hold_lock
from blockscale.files.directory.leftovers import delete, find_leftovers
from blockscale.files.metadata import FileError
from blockscale.files.whole import written_whole

DIGEST = "0123abcd"


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def made(path, *files):
    """A folder of a run, with files in it."""
    path.mkdir(mode=0o700, parents=True)
    for name in files:
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_bytes(b"x" * 5000)
    return path


def old_file(path):
    path.write_text("x")
    os.utime(path, (time.time() - 3600,) * 2)
    return path


def test_each_kind(out):
    work = made(work_path(out, DIGEST), "lock", "journal", "out/a.partial")
    gone = made(gone_path(out, DIGEST), "a")
    again = made(again_path(out), "lock")
    file = old_file(out.with_name(".a.safetensors.0123abcd.partial"))
    out.mkdir()
    inside = old_file(out / ".b.safetensors.0123abcd.partial")
    made(out.with_name(".other.blockscale-0123abcd"))
    (out.parent / ".env").touch()
    here = find_leftovers(out)
    assert {each.path for each in here} == {work, gone, again, inside}
    assert {each.path for each in find_leftovers(out.with_name("a.safetensors"))} == {file}
    assert len(find_leftovers(out.parent)) == 5
    [run] = [each for each in here if each.path == work]
    assert run.what == "an unfinished run" and run.nbytes >= 5000 and run.seconds < 60
    assert run.owner and run.to_dict()["path"] == str(work)
    assert all(delete(each) for each in (*here, *find_leftovers(out.parent)))
    assert {each.name for each in out.parent.iterdir()} == {"out", ".env"}
    assert not list(out.iterdir())


@pytest.mark.parametrize("kind", ["work", "again"])
def test_what_a_process_holds(kind, out):
    path = made(work_path(out, DIGEST) if kind == "work" else again_path(out))
    [before] = find_leftovers(out)
    with hold_lock(path):
        [now] = find_leftovers(out)
        assert "a process is writing it" in now.keep
        assert not delete(now) and not delete(before) and path.exists()
    assert delete(before) and not path.exists()


def test_a_file_that_is_being_written(out, monkeypatch):
    monkeypatch.setattr(leftovers, "_RECENT", -1.0)  # its lock alone keeps it
    with written_whole(out) as temporary:
        [found] = find_leftovers(out)
        assert found.path == temporary and "a process is writing it" in found.keep
        assert not delete(found)
    assert out.exists() and find_leftovers(out) == []


def test_what_changed_just_now_is_kept(out):
    """A writer of another release, or on a disk without locks, may be at it."""
    out.with_name(".out.0123abcd.partial").touch()
    assert "it changed less than 10 minutes ago" in find_leftovers(out)[0].keep


@pytest.mark.parametrize("there", ["nothing", "empty", "mine", "no journal"])
def test_an_only_copy_is_never_deleted(there, out):
    """Unless it is known that the new output has its place."""
    old = made(old_path(out, DIGEST), "a")
    if there != "no journal":
        made(work_path(out, DIGEST), "journal", *(["out/a"] if there == "mine" else []))
    if there != "nothing":
        made(out, *(["a"] if there != "empty" else []))
    [found] = [each for each in find_leftovers(out) if each.path == old]
    assert "it may be the only copy" in found.keep
    assert not delete(found) and (old / "a").exists()


def test_what_was_replaced_is_deleted(out):
    made(out, "a")
    old, work = made(old_path(out, DIGEST), "a"), made(work_path(out, DIGEST), "journal")
    found = find_leftovers(out)
    assert [each.keep for each in found] == ["", ""]
    assert all(delete(each) for each in sorted(found, key=lambda each: each.path != old))
    assert not old.exists() and not work.exists() and (out / "a").exists()


def test_a_finished_result_is_kept(out):
    work = made(work_path(out, DIGEST), "journal", "out/blockscale_ledger.json")
    [found] = find_leftovers(out)
    assert (
        found.what == "a finished run that was not moved into place"
        and "it is complete" in found.keep
    )
    assert not delete(found) and work.exists()


def test_what_others_have_planted(out, tmp_path, monkeypatch):
    victim = made(tmp_path / "victim", "a")
    gone_path(out, DIGEST).symlink_to(victim)
    [found] = find_leftovers(out)
    assert "it is a link" in found.keep and found.nbytes < 100_000
    assert not delete(found) and (victim / "a").exists()
    gone_path(out, DIGEST).unlink()
    os.mkfifo(gone_path(out, DIGEST))
    [found] = find_leftovers(out)
    assert "it is a link or a device" in found.keep and not delete(found)
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    [found] = find_leftovers(out)
    assert found.keep == "it belongs to another user" and not delete(found)


def test_a_file_that_became_another_one(out):
    path = old_file(out.with_name(".out.0123abcd.partial"))
    [found] = find_leftovers(out)
    path.unlink()
    path.touch()
    assert not delete(found) and path.exists()
    path.unlink()
    assert delete(found)


def test_no_folder(tmp_path):
    with pytest.raises(FileError, match="nothing is not a directory: name an output"):
        find_leftovers(tmp_path / "nothing" / "out")
    assert find_leftovers(tmp_path / "nothing") == []
