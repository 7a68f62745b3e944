# SPDX-License-Identifier: BSD-3-Clause
"""Lines of the journal are written after the data they speak of, and read back."""

import hashlib
import threading

import pytest

from blockscale.files.directory import journal as journals
from blockscale.files.directory.journal import Digests, Journal, file_digest
from blockscale.files.metadata import FileError


def test_the_journal(tmp_path, monkeypatch):
    monkeypatch.setattr(journals, "SECONDS", 0.0)
    path = tmp_path / "journal"
    journal = Journal(path)
    waits = []
    journal.add("a", "x", ("note",), 10, lambda: waits.append(path.exists()))
    journal.add("a", "y", (), 10, lambda: waits.append(1))
    assert waits == [False, 1]  # the data first, then the line
    with path.open("ab") as file:
        file.write(b'{"shard": "a", "ten')
    again = Journal(path)
    assert again.finished_tensors("a") == {"x": ("note",), "y": ()}
    again.forget("a")
    again.forget("b")
    again.add("a", "z", (), 10, lambda: None)
    assert Journal(path).finished_tensors("a") == {"z": ()}
    assert path.read_text().count("\n") == 4


def test_small_tensors_wait_together_and_large_ones_do_not(tmp_path, monkeypatch):
    monkeypatch.setattr(journals, "SECONDS", 1e9)
    path, waits = tmp_path / "journal", []
    journal = Journal(path)
    journal.add("a", "x", (), journals.BYTES - 1, lambda: waits.append("x"))
    assert waits == [] and not path.exists() and journal.finished_tensors("a") == {}
    journal.add("a", "y", (), 1, lambda: waits.append("y"))
    assert waits == ["y"] and set(journal.finished_tensors("a")) == {"x", "y"}
    journal.add("a", "z", (), 1, lambda: waits.append("z"))
    journal.commit(lambda: waits.append("end"))
    journal.commit(lambda: waits.append("nothing is left to wait for"))
    assert waits == ["y", "end"] and set(Journal(path).finished_tensors("a")) == {"x", "y", "z"}


@pytest.mark.parametrize(
    "line",
    [b"{", b"[]", b"5", b"{}", b"[" * 5000, b"\xff", b'{"shard": "a", "tensor": "x", "notes": 5}',
     b'{"shard": ["a"], "tensor": "x", "notes": []}', b'{"shard": "a", "tensor": {}, "notes": []}'],
)  # fmt: skip
def test_a_damaged_journal_is_set_aside(tmp_path, line):
    """It left every later run stuck at the same error."""
    path = tmp_path / "journal"
    good = b'{"shard": "a", "tensor": "x", "notes": []}\n'
    path.write_bytes(good + line + b"\n" + good)
    with pytest.warns(UserWarning, match=r"is damaged .* it is kept as journal\.damaged1"):
        journal = Journal(path)
    assert journal.finished_tensors("a") == {} and not path.exists()
    assert (tmp_path / "journal.damaged1").read_bytes() == good + line + b"\n" + good
    journal.add("a", "y", (), journals.BYTES, lambda: None)
    assert Journal(path).finished_tensors("a") == {"y": ()}


# Digests beside other work: in their order, given up when the run ends early.


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

    monkeypatch.setattr(journals, "file_digest", slow)
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
