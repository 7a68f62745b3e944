# SPDX-License-Identifier: BSD-3-Clause
"""Names beside an output: what each of them is, and for which output."""

import pytest

from blockscale.files.directory.beside import (
    SideFile,
    again_path,
    beside,
    free_name,
    gone_path,
    old_path,
    read_name,
    waiting,
    work_path,
)


@pytest.mark.parametrize("name", ["out", ".out", "a b", "[x]*", "out.blockscale-0", "a\nb"])
def test_names_are_read_as_they_are_made(name, tmp_path):
    target = tmp_path / name
    digest = "0123456789abcdef"
    made = {"work": work_path, "old": old_path, "gone": gone_path}
    for kind, path in ((kind, make(target, digest)) for kind, make in made.items()):
        assert read_name(path) == SideFile(kind, name, "01234567")
        path.mkdir()
        assert read_name(free_name(path)) == SideFile(kind, name, "01234567")
    assert read_name(again_path(target)).kind == "again"
    (tmp_path / f".{name}x.blockscale-01234567").mkdir()  # another output's
    assert beside(target) == sorted(make(target, digest) for make in made.values())
    assert waiting(target) == [old_path(target, digest)]


@pytest.mark.parametrize(
    "name", ["out", ".out", ".out.blockscale-xyz", ".out.partial", ".out.0123456.partial", ".git"]
)
def test_names_of_others(name, tmp_path):
    assert read_name(tmp_path / name) is None


def test_files(tmp_path):
    assert read_name(tmp_path / ".a.safetensors.0123abcd.partial") == (
        "partial", "a.safetensors", "0123abcd",
    )  # fmt: skip
    assert read_name(tmp_path / ".out.0123abcd.new").kind == "new"
