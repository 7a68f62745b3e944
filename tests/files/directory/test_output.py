"""The output appears whole or not at all, and never in the place of something else."""

import errno
import os
import shutil
import warnings
from collections import namedtuple

import pytest

from blockscale.files.directory.quantize_directory import plan_directory, quantize_directory
from blockscale.files.metadata import FileError
from tests.files.directory.places import Listener, changed
from tests.files.models import contents


def test_directories_that_lie_in_one_another(place):
    message = "are the same or one holds the other: choose an output elsewhere"
    for out in (place.model, place.model / "out", place.folder, place.model / ".." / "model"):
        place.refuses(message, out=out, force=True)
    (place.folder / "link").symlink_to(place.model)
    changed(place).refuses(message, out=place.folder / "link" / "out")


def test_an_output_that_is_taken(place, monkeypatch):
    place.out.mkdir()
    (place.out / "precious.txt").write_text("mine")
    changed(place).refuses("out exists: choose another output, or replace it with --force")
    place.refuses("precious.txt is not a directory", out=place.out / "precious.txt", force=True)
    monkeypatch.chdir(place.out)
    place.refuses("out, which --force would delete", force=True)
    monkeypatch.chdir("/")
    monkeypatch.setenv("HOME", str(place.out / "me"))
    place.refuses("me, which --force would delete", force=True)


def test_force_replaces_and_an_empty_output_is_free(place):
    place.out.mkdir()
    quantize_directory(place.model, place.out, "mxfp4")
    first = contents(place.out)
    (place.out / "more.txt").write_text("more")
    quantize_directory(place.model, place.out, "mxfp8", force=True)
    assert (place.out / "more.txt").exists() is False
    quantize_directory(place.model, place.out, "mxfp4", force=True)
    assert contents(place.out) == first
    assert not list(place.folder.glob(".*"))


def test_force_replaces_a_link_and_not_what_it_leads_to(place):
    other = place.folder / "other"
    other.mkdir()
    (other / "precious.txt").write_text("mine")
    place.out.symlink_to(other)
    quantize_directory(place.model, place.out, "mxfp4", force=True)
    assert not place.out.is_symlink()
    assert contents(other) == {"precious.txt": b"mine"}


def test_parents_are_made(place):
    quantize_directory(place.model, place.folder / "a" / "b" / "out", "mxfp4")
    assert (place.folder / "a" / "b" / "out" / "config.json").exists()


def test_too_little_space(place, monkeypatch):
    plan = plan_directory(place.model, place.out, "mxfp4")
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, plan.size - 1))
    with warnings.catch_warnings():
        place.refuses(
            r"the output needs 0.00 GB, the disk of .* has 0.00 GB free: make room for 0.00 GB"
        )
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, plan.size))
    quantize_directory(place.model, place.out, "mxfp4")


@pytest.mark.parametrize("after", [0, 5, 40])
def test_a_full_disk(place, monkeypatch, after):
    """The source and an old output stay; with room, the next run goes on to the same bytes."""
    quantize_directory(place.model, place.folder / "whole", "nvfp4")
    place.out.mkdir()
    (place.out / "old.txt").write_text("old")
    before, whole = contents(place.folder), contents(place.folder / "whole")
    real, count = os.pwrite, iter(range(10**9))

    def write(*args):
        if next(count) >= after:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*args)

    monkeypatch.setattr(os, "pwrite", write)
    said = Listener()
    with pytest.raises(FileError, match=r"the disk of .* is full: make room on it"):
        quantize_directory(place.model, place.out, "nvfp4", force=True, progress=said)
    monkeypatch.undo()
    assert any("what is finished is kept in" in text for text in said.texts)
    found = contents(place.folder)
    assert {name: found[name] for name in before} == before
    quantize_directory(place.model, place.out, "nvfp4", force=True)
    assert contents(place.out) == whole


def test_a_full_disk_is_found_before_work_begins(place, monkeypatch):
    def reserve(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", reserve)
    with pytest.raises(FileError, match="is full"):
        quantize_directory(place.model, place.out, "nvfp4")
