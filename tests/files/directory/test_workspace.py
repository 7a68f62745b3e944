"""Where a run writes, until the result takes its place."""

import shutil

import pytest

from blockscale.files.directory.quantize_directory import plan_directory, quantize_directory
from blockscale.files.directory.workspace import Workspace, old_path, restore, work_path
from blockscale.files.metadata import FileError
from tests.files.directory.places import Listener
from tests.files.models import contents


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
    quantize_directory(place.model, place.out, "nvfp4", force=True, progress=said)
    assert said.advanced == 0
    assert "model.safetensors.index.json" in contents(place.out)


def test_a_swap_that_was_killed_is_undone(model, whole, tmp_path):
    """Between its two renames: the old output is aside, the new one not yet in its place."""
    out = tmp_path / "out"
    digest = plan_directory(model, out, "nvfp4").digest
    aside = old_path(out, digest)
    aside.mkdir()
    (aside / "old.txt").write_text("old")
    counter = Listener()
    with pytest.raises(FileError, match="out exists"):
        quantize_directory(model, out, "nvfp4", progress=counter)
    assert contents(out) == {"old.txt": b"old"}
    assert any("is back in its place" in text for text in counter.texts)
    assert not restore(out, digest)
    quantize_directory(model, out, "nvfp4", force=True)
    assert contents(out) == whole


def test_two_processes_do_not_share_a_directory(model, tmp_path):
    out = tmp_path / "out"
    digest = plan_directory(model, out, "nvfp4").digest
    message = r"another process is writing .*: wait for it, or write"
    with Workspace(out, digest), pytest.raises(FileError, match=message):
        quantize_directory(model, out, "nvfp4")
    shutil.rmtree(work_path(out, digest))
    quantize_directory(model, out, "nvfp4")
