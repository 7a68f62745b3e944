"""One safetensors file of a run."""

import os

import pytest

from blockscale.files.directory import journal as journals
from blockscale.files.directory import shard
from blockscale.files.directory.quantize_directory import quantize_directory
from blockscale.files.metadata import FileError
from tests.files.directory.places import Listener


def test_a_source_that_changes(place):
    class Meddler(Listener):
        def advance(self, name, nbytes):
            os.utime(place.model / "model-00001-of-00002.safetensors")

    with pytest.raises(FileError, match=r"00001-of-00002.safetensors changed while it was read"):
        quantize_directory(place.model, place.out, "nvfp4", progress=Meddler())
    assert not place.out.exists()


def test_many_small_tensors_share_a_wait(model, tmp_path, monkeypatch):
    waits = []
    real = shard.Writer.sync
    monkeypatch.setattr(shard.Writer, "sync", lambda self: (waits.append(1), real(self)))
    monkeypatch.setattr(journals, "SECONDS", 1e9)
    quantize_directory(model, tmp_path / "out", "nvfp4")
    assert len(waits) == 4  # two a shard: its tensors, and its end
