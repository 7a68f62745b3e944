# SPDX-License-Identifier: BSD-3-Clause
"""The output appears whole or not at all, and never in the place of something else."""

import errno
import json
import os
import shutil
import warnings
from collections import namedtuple

import pytest

from blockscale.files.directory import output
from blockscale.files.directory.output import check_output
from blockscale.files.directory.quantize_directory import plan_directory, quantize_directory
from blockscale.files.metadata import FileError
from tests.files.directory.places import Listener, changed
from tests.support.file_models import contents


def test_directories_that_lie_in_one_another(place):
    message = "are the same or one holds the other: choose an output elsewhere"
    for out in (place.model, place.model / "out", place.folder, place.model / ".." / "model"):
        place.refuses(message, out=out, force=2)
    (place.folder / "link").symlink_to(place.model)
    changed(place).refuses(message, out=place.folder / "link" / "out")


def test_an_output_that_is_taken(place, monkeypatch):
    place.out.mkdir()
    (place.out / "precious.txt").write_text("mine")
    changed(place).refuses("out exists: choose another output, or replace it with --force")
    place.refuses("precious.txt is not a directory", out=place.out / "precious.txt", force=2)
    monkeypatch.chdir(place.out)
    place.refuses("out, which --force would delete", force=2)
    monkeypatch.chdir("/")
    monkeypatch.setenv("HOME", str(place.out / "me"))
    place.refuses("me, which --force would delete", force=2)


@pytest.mark.slow
def test_force_replaces_and_an_empty_output_is_free(place):
    place.out.mkdir()
    quantize_directory(place.model, place.out, "mxfp4")
    first = contents(place.out)
    (place.out / "more.txt").write_text("more")
    quantize_directory(place.model, place.out, "mxfp8", force=2)
    assert (place.out / "more.txt").exists() is False
    quantize_directory(place.model, place.out, "mxfp4", force=2)
    assert contents(place.out) == first
    assert not list(place.folder.glob(".*"))


def test_force_replaces_a_link_and_not_what_it_leads_to(place):
    other = place.folder / "other"
    other.mkdir()
    (other / "precious.txt").write_text("mine")
    place.out.symlink_to(other)
    quantize_directory(place.model, place.out, "mxfp4", force=2)
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
        quantize_directory(place.model, place.out, "nvfp4", force=2, progress=said)
    monkeypatch.undo()
    assert any("finished parts are kept" in text for text in said.texts)
    found = contents(place.folder)
    assert {name: found[name] for name in before} == before
    quantize_directory(place.model, place.out, "nvfp4", force=2)
    assert contents(place.out) == whole


def test_a_full_disk_is_found_before_work_begins(place, monkeypatch):
    def reserve(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", reserve)
    with pytest.raises(FileError, match="is full"):
        quantize_directory(place.model, place.out, "nvfp4")


@pytest.mark.slow
def test_force_spares_what_blockscale_has_not_written(place):
    place.out.mkdir()
    (place.out / "thesis.txt").write_text("mine")
    changed(place).refuses(r"was not written by blockscale .*: .*say --force twice", force=True)
    quantize_directory(place.model, place.out, "mxfp4", force=2)
    assert (place.out / "blockscale_ledger.json").is_file()
    quantize_directory(place.model, place.out, "nvfp4", force=True)  # its own is replaced
    assert not list(place.folder.glob(".*"))


def test_a_link_to_an_empty_folder(place):
    """The last rename could not replace it: it is refused before any work."""
    other = place.folder / "other"
    other.mkdir()
    place.out.symlink_to(other)
    changed(place).refuses(r"out is a link, to .*: name the directory that it leads to")
    quantize_directory(place.model, place.out, "mxfp4", force=2)
    assert not place.out.is_symlink() and not list(other.iterdir())


def test_links_that_lead_to_themselves(place):
    place.out.symlink_to(place.out)
    changed(place).refuses(r"out is a link, to .*: name the directory that it leads to")
    with pytest.raises(FileError, match="does not exist: name the directory"):
        quantize_directory(place.out, place.folder / "other", "mxfp4")
    quantize_directory(place.model, place.out, "mxfp4", force=2)
    assert not place.out.is_symlink()


def test_a_mount_point(place, monkeypatch):
    place.out.mkdir()
    for point, force in ((place.out, 0), (place.out / "in", 2)):
        monkeypatch.setattr(output, "mounts_in", lambda path, point=point: [point])
        changed(place).refuses(f"{point} is a mount point, which cannot be renamed", force=force)


@pytest.mark.slow
def test_names_that_are_too_long(place):
    """The longest that fits, and one byte more, of the output and of a side file."""
    longest = 255 - len(".") - len(".blockscale-gone-01234567") - len("-")
    quantize_directory(place.model, place.folder / ("é" * (longest // 2)), "mxfp4")
    shutil.rmtree(place.folder / ("é" * (longest // 2)))
    long = "é" * (longest // 2) + "xxx"
    changed(place).refuses(
        r"the name .* is too long: a run needs a file .* of 25[67] bytes", out=place.folder / long
    )
    (place.model / ("y" * 247)).touch()
    quantize_directory(place.model, place.out, "mxfp4")
    shutil.rmtree(place.out)
    (place.model / ("y" * 248)).touch()
    changed(place).refuses(r"the name 'yyy.* is too long: a run needs a file .* of 256 bytes")


def test_a_shard_whose_name_is_too_long(place):
    index = place.model / "model.safetensors.index.json"
    told = json.loads(index.read_text())
    name = next(iter(told["weight_map"]))
    told["weight_map"][name] = "z" * 300 + ".safetensors"
    index.write_text(json.dumps(told))
    changed(place).refuses(r"names 'zzz.*, which is too long for a file: at most 255 bytes")


def test_a_path_that_is_too_long(place):
    out = place.folder.joinpath(*["d" * 200] * 20, "out")
    place.refuses("and paths have at most 4095 on this system: choose a shorter path", out=out)


def test_a_place_where_nothing_can_be_written(place, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path != place.folder)
    place.refuses("nothing can be written in .*: choose another output")
    monkeypatch.undo()
    (place.folder / "file").touch()
    changed(place).refuses("file is not a directory", out=place.folder / "file" / "out")


def test_a_sticky_folder_where_another_user_has_the_output(place, monkeypatch):
    """As in /tmp: the rename at the end would not be allowed."""
    place.out.mkdir()
    place.folder.chmod(0o1777)
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    changed(place).refuses("belongs to another user, and you may not rename", force=2)
    place.folder.chmod(0o755)
    plan = plan_directory(place.model, place.out, "mxfp4")
    check_output(place.out, plan, 0)


def test_a_side_file_that_cannot_be_read(place, monkeypatch):
    (place.model / "secret.txt").write_text("x")
    real = os.open

    def opened(path, *args, **options):
        if str(path).endswith("secret.txt"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, *args, **options)

    monkeypatch.setattr(os, "open", opened)
    changed(place).refuses(
        r"secret.txt cannot be read \(Permission denied\), and it has to be copied"
    )
