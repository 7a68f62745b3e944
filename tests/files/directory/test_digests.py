# SPDX-License-Identifier: BSD-3-Clause
"""Digests beside other work: in their order, given up when the run ends early."""

import hashlib
import threading

import pytest

from blockscale.files.directory import digests
from blockscale.files.directory.digests import Digests, file_digest
from blockscale.files.metadata import FileError


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 7])
def test_a_file(size, tmp_path):
    data = bytes(range(256)) * (size // 256 + 1)
    (tmp_path / "a").write_bytes(data[:size])
    assert file_digest(tmp_path / "a") == hashlib.sha256(data[:size]).hexdigest()


def test_no_file(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("link", "nothing"):
        with pytest.raises(FileError):
            file_digest(tmp_path / name)


def test_beside_other_work(tmp_path, monkeypatch):
    """`settle` waits only where it is told to, and keeps the order."""
    found, free = [], threading.Event()
    real = file_digest

    def slow(path, stop):
        free.wait(10)
        return real(path, stop)

    monkeypatch.setattr(digests, "file_digest", slow)
    with Digests() as running:
        for name in "abc":
            (tmp_path / name).write_text(name)
            running.begin(tmp_path / name, found.append)
        running.settle()
        assert found == []
        free.set()
        running.settle(wait=True)
    assert found == [hashlib.sha256(name.encode()).hexdigest() for name in "abc"]


def test_what_is_not_settled_is_given_up(tmp_path):
    found = []
    (tmp_path / "a").write_text("a")
    with pytest.raises(KeyError), Digests() as running:
        running.begin(tmp_path / "a", found.append)
        raise KeyError
    assert found == []
    with pytest.raises(InterruptedError):
        file_digest(tmp_path / "a", lambda: True)


def test_an_error_reaches_the_run(tmp_path):
    with Digests() as running:
        running.begin(tmp_path / "nothing", lambda digest: None)
        with pytest.raises(FileError, match="does not exist"):
            running.settle(wait=True)
