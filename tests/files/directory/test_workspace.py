# SPDX-License-Identifier: BSD-3-Clause
"""Where a run writes, until the result takes its place."""

import os
import shutil

import pytest

from blockscale.files.directory.beside import work_path
from blockscale.files.directory.quantize_directory import plan_directory, quantize_directory
from blockscale.files.directory.workspace import Workspace
from blockscale.files.metadata import FileError
from tests.files.directory.places import Listener
from tests.support.file_models import contents


@pytest.mark.slow
def test_an_output_that_appears_meanwhile(place):
    class Meddler(Listener):
        def advance(self, name, nbytes):
            place.out.mkdir(exist_ok=True)
            (place.out / "precious.txt").write_text("mine")

    with pytest.raises(
        FileError, match=r"appeared while the model was quantized. The result is complete"
    ):
        quantize_directory(place.model, place.out, "nvfp4", progress=Meddler())
    assert contents(place.out) == {"precious.txt": b"mine"}
    said = Listener()
    quantize_directory(place.model, place.out, "nvfp4", force=2, progress=said)
    assert said.advanced == 0
    assert "model.safetensors.index.json" in contents(place.out)


def test_two_processes_do_not_share_a_directory(model, tmp_path):
    out = tmp_path / "out"
    digest = plan_directory(model, out, "nvfp4").digest
    message = r"another process is writing .*: wait for it, or write"
    with Workspace(out, digest), pytest.raises(FileError, match=message):
        quantize_directory(model, out, "nvfp4")
    shutil.rmtree(work_path(out, digest))
    quantize_directory(model, out, "nvfp4")


def fresh(model, out):
    """The work directory of a run that has not begun."""
    return work_path(out, plan_directory(model, out, "nvfp4").digest)


def test_only_this_user_can_change_the_work_directory(model, tmp_path):
    out, seen = tmp_path / "out", []
    work = fresh(model, out)

    class Looks(Listener):
        def advance(self, name, nbytes):
            seen.append(work.stat().st_mode & 0o777)

    quantize_directory(model, out, "nvfp4", progress=Looks())
    assert set(seen) == {0o700}
    assert out.stat().st_mode & 0o777 == 0o777 & ~umask()


def umask():
    now = os.umask(0)
    os.umask(now)
    return now


def test_a_work_directory_that_somebody_else_has_put_there(model, tmp_path, monkeypatch):
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    elsewhere.mkdir()
    work = fresh(model, out)
    work.symlink_to(elsewhere)
    with pytest.raises(
        FileError, match="is a link or a file, expected the working folder of a run"
    ):
        quantize_directory(model, out, "nvfp4")
    assert not list(elsewhere.iterdir()) and not out.exists()
    work.unlink()
    work.mkdir(mode=0o700)
    work.chmod(0o777)
    with pytest.raises(FileError, match="is writable by other users"):
        quantize_directory(model, out, "nvfp4")
    work.chmod(0o700)
    with monkeypatch.context() as other:
        other.setattr(os, "geteuid", lambda: os.getuid() + 1)
        with pytest.raises(FileError, match="belongs to another user"):
            quantize_directory(model, out, "nvfp4")
    quantize_directory(model, out, "nvfp4")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["lock", "journal", "out", "out/model-00001-of-00002.safetensors.partial"]
)
def test_links_in_it_are_not_followed(name, model, whole, tmp_path):
    """A planted link overwrites nothing outside."""
    out, victim = tmp_path / "out", tmp_path / "victim"
    victim.write_text("mine")
    if name == "out":
        victim.unlink()
        victim.mkdir()
    work = fresh(model, out)
    (work / name).parent.mkdir(parents=True, mode=0o700)
    work.chmod(0o700)
    (work / name).symlink_to(victim)
    with pytest.raises((FileError, OSError)):
        quantize_directory(model, out, "nvfp4")
    assert list(victim.iterdir()) == [] if name == "out" else victim.read_text() == "mine"
    shutil.rmtree(work)
    quantize_directory(model, out, "nvfp4")
    assert contents(out) == whole
