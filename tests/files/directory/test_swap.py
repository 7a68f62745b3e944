# SPDX-License-Identifier: BSD-3-Clause
"""A new output in the place of an old one: at every moment one of them is whole and has its name,
or is put back by the next run."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from blockscale.files.directory import folder, swap
from blockscale.files.directory.beside import gone_path, old_path, work_path
from blockscale.files.directory.folder import hold_lock
from blockscale.files.directory.quantize_directory import plan_directory, quantize_directory
from blockscale.files.directory.swap import (
    check_movable,
    is_done,
    put_in_place,
    restore,
    whole_folder,
)
from blockscale.files.metadata import FileError
from tests.files.directory.places import Listener
from tests.support.file_models import contents

DIGEST = "0123abcd"


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def put_aside(out, digest=DIGEST):
    """What a run that was killed between its renames leaves."""
    old_path(out, digest).mkdir()
    (old_path(out, digest) / "old.txt").write_text("old")
    work = work_path(out, digest)
    (work / "out").mkdir(parents=True, mode=0o700)
    work.chmod(0o700)
    (work / "journal").touch()
    return old_path(out, digest)


def test_an_output_that_waits_is_put_back_whatever_the_recipe(model, out):
    """Killed between its renames; then another recipe, without force."""
    aside, said = put_aside(out, plan_directory(model, out, "nvfp4").digest), Listener()
    with pytest.raises(FileError, match="out exists"):
        quantize_directory(model, out, "mxfp4", progress=said)
    assert contents(out) == {"old.txt": b"old"} and not aside.exists()
    assert any("is back in its place" in text for text in said.texts)
    assert not restore(out)


def test_a_run_between_its_renames_is_left_alone(out):
    """It holds its lock: what it has put aside is not put back under its hands."""
    aside = put_aside(out)
    with hold_lock(work_path(out, DIGEST)):
        with pytest.raises(FileError, match=r"another process is writing .*-0123abcd"):
            restore(out)
        assert not out.exists() and aside.exists()
    assert restore(out) and contents(out) == {"old.txt": b"old"}


def test_an_output_that_waits_without_its_run(out):
    """Its work directory was deleted: the lock is taken all the same, and nothing is left of it."""
    shutil.rmtree(put_aside(out).with_name(work_path(out, DIGEST).name))
    assert restore(out) and contents(out) == {"old.txt": b"old"}
    assert [each.name for each in out.parent.iterdir()] == ["out"]


def test_an_empty_output_does_not_hide_what_waits(model, out):
    """Whatever made the empty folder: what waits may be the only copy."""
    put_aside(out)
    out.mkdir()
    with pytest.raises(FileError, match="out exists"):
        quantize_directory(model, out, "mxfp4")
    assert contents(out) == {"old.txt": b"old"}


def test_what_another_user_has_put_there_is_not_taken(model, out, monkeypatch):
    put_aside(out)
    said = Listener()
    with monkeypatch.context() as other:
        other.setattr(swap, "is_own", lambda path: False)
        assert not restore(out) and not out.exists()
    real = os.geteuid()
    with monkeypatch.context() as other:
        other.setattr(folder.os, "geteuid", lambda: real + 1)
        assert not folder.is_own(old_path(out, DIGEST))
    from blockscale.files.directory import quantize_directory as runs

    with monkeypatch.context() as other:
        other.setattr(runs, "is_own", lambda path: False)
        other.setattr(swap, "is_own", lambda path: False)
        quantize_directory(model, out, "mxfp4", progress=said)
    assert any("is another user's, and was not touched" in text for text in said.texts)
    assert contents(old_path(out, DIGEST)) == {"old.txt": b"old"}


def test_more_than_one_output_that_waits(model, out):
    for number in range(2):
        old_path(out, f"{number:08d}").mkdir()
    with pytest.raises(FileError, match=r"left several directories that may .*-00000001"):
        quantize_directory(model, out, "mxfp4")
    assert not out.exists()


def test_what_waits_is_not_called_useless(model, out):
    """Something else is in the output's place: what waits may still be the only copy."""
    aside, said = put_aside(out), Listener()
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    assert not is_done(aside)
    quantize_directory(model, out, "mxfp4", force=2, progress=said)
    assert any("maybe the only copy" in text for text in said.texts)
    assert contents(aside) == {"old.txt": b"old"}


def test_a_swap_that_was_killed_when_it_was_done(model, out):
    """Only deleting the old output was not: the next run of the plan does it."""
    plan = plan_directory(model, out, "nvfp4")
    aside = put_aside(out, plan.digest)
    (work_path(out, plan.digest) / "out").rename(out)
    (out / "blockscale_ledger.json").write_text("{}")
    assert is_done(aside)
    quantize_directory(model, out, "nvfp4", force=True)
    assert sorted(each.name for each in out.parent.iterdir()) == ["model", "out"]


def test_half_of_a_deleted_output_never_comes_back(out, monkeypatch):
    """A kill while the old output is being deleted, then the user deletes the new one."""
    out.mkdir()
    (out / "a").touch()

    def stop(path):
        (path / "a").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(swap, "remove", stop)
    work = work_path(out, DIGEST)
    with pytest.raises(KeyboardInterrupt), hold_lock(work):
        (work / "out").mkdir()
        put_in_place(out, DIGEST, force=True)
    monkeypatch.undo()
    assert gone_path(out, DIGEST).exists() and not old_path(out, DIGEST).exists()
    out.rmdir()
    assert not restore(out)


def test_two_forced_runs_at_once_lose_nothing(out, monkeypatch):
    """The other one is done between this one's renames."""
    out.mkdir()
    (out / "old.txt").write_text("old")
    work, real = work_path(out, DIGEST), Path.rename

    def rename(path, to):
        if path.name == "out" and path.parent == work:
            out.mkdir()
            (out / "theirs.txt").write_text("theirs")
        return real(path, to)

    with hold_lock(work):
        (work / "out").mkdir()
        monkeypatch.setattr(Path, "rename", rename)
        with pytest.raises(FileError, match=r"appeared while .* What was there before is .*-old-"):
            put_in_place(out, DIGEST, force=True)
    assert contents(out) == {"theirs.txt": b"theirs"}
    assert contents(old_path(out, DIGEST)) == {"old.txt": b"old"}


def test_a_folder_appears_whole(out):
    with whole_folder(out, force=False) as made:
        made.mkdir()
        (made / "a").write_text("a")
        assert not out.exists()
    assert contents(out) == {"a": b"a"}
    with pytest.raises(KeyError), whole_folder(out, force=True) as made:
        made.mkdir()
        raise KeyError
    assert contents(out) == {"a": b"a"}
    with whole_folder(out, force=True) as made:
        made.mkdir()
    assert contents(out) == {} and [each.name for each in out.parent.iterdir()] == ["out"]


def test_a_folder_whose_place_is_taken_is_kept(out):
    with pytest.raises(FileError, match="appeared while"), whole_folder(out, force=False) as made:
        made.mkdir()
        (made / "a").write_text("a")
        out.mkdir()
        (out / "mine").touch()
    [work] = out.parent.glob(".out.blockscale-*")
    assert contents(work / "out") == {"a": b"a"} and contents(out) == {"mine": b""}


def filled(out):
    out.mkdir()
    (out / "mine").write_text("mine")
    return out


def test_whether_a_directory_can_be_renamed_is_asked_without_doing_it(out):
    work = work_path(filled(out), DIGEST)
    with hold_lock(work):
        check_movable(out, work)
        assert contents(out) == {"mine": b"mine"} and [each.name for each in work.iterdir()] == [
            "lock"
        ]


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EBUSY])
def test_an_output_that_cannot_be_renamed_is_known_before_any_work(model, out, monkeypatch, code):
    """As on a lower layer of an overlay: the system says so of any rename of that directory."""
    real, (asked, wrote) = os.rename, ([], [])

    def rename(source, target):
        if Path(source) == out:
            asked.append(target)
            raise OSError(code, os.strerror(code))
        real(source, target)

    filled(out)
    monkeypatch.setattr(os, "rename", rename)
    refused = pytest.raises(FileError, match=r"out cannot be renamed.*choose another output")
    with refused, whole_folder(out, True):
        wrote.append(1)
    with pytest.raises(FileError, match=r"out cannot be renamed.*choose another output"):
        quantize_directory(model, out, "mxfp4", force=2, progress=Listener())
    assert len(asked) == 2 and not wrote and contents(out) == {"mine": b"mine"}


def test_a_disk_that_replaces_what_is_not_empty(out, monkeypatch):
    """POSIX has none: what it took is given back."""
    real = os.rename

    def rename(source, target):
        if Path(target) == work:
            shutil.rmtree(work)
        real(source, target)

    work = work_path(filled(out), DIGEST)
    work.mkdir()
    (work / "lock").touch()
    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(FileError, match="a folder that was not empty was replaced"):
        check_movable(out, work)
    assert contents(out) == {"mine": b"mine"}
