"""Lines of the journal are written after the data they speak of, and read back."""

from blockscale.files.directory import journal as journals
from blockscale.files.directory.journal import Journal


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
    assert again.done("a") == {"x": ("note",), "y": ()}
    again.forget("a")
    again.forget("b")
    again.add("a", "z", (), 10, lambda: None)
    assert Journal(path).done("a") == {"z": ()}
    assert path.read_text().count("\n") == 4


def test_small_tensors_wait_together_and_large_ones_do_not(tmp_path, monkeypatch):
    monkeypatch.setattr(journals, "SECONDS", 1e9)
    path, waits = tmp_path / "journal", []
    journal = Journal(path)
    journal.add("a", "x", (), journals.BYTES - 1, lambda: waits.append("x"))
    assert waits == [] and not path.exists() and journal.done("a") == {}
    journal.add("a", "y", (), 1, lambda: waits.append("y"))
    assert waits == ["y"] and set(journal.done("a")) == {"x", "y"}
    journal.add("a", "z", (), 1, lambda: waits.append("z"))
    journal.commit(lambda: waits.append("end"))
    journal.commit(lambda: waits.append("nothing is left to wait for"))
    assert waits == ["y", "end"] and set(Journal(path).done("a")) == {"x", "y", "z"}
