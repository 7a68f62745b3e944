# SPDX-License-Identifier: BSD-3-Clause
"""Texts and the sequences that are cut from them."""

import pytest
import torch

from blockscale.evaluation.texts import Text, held_out, windows


def letters(text):
    return [ord(c) for c in text]


def test_pythons_own_help_is_the_same_each_time():
    text = held_out()
    assert text == held_out() and len(text.content) > 100_000
    assert text.name.startswith("pydoc_data.topics of Python 3.")
    assert len(text.digest) == 16


def test_a_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("Grüße\n")
    assert held_out(path) == Text("a.txt", "Grüße\n")
    path.write_bytes(b"ab\xff")
    with pytest.raises(ValueError, match=r"not text in UTF-8: byte 2"):
        held_out(path)
    path.write_text(" \n")
    with pytest.raises(ValueError, match="is empty"):
        held_out(path)


def test_rows_follow_each_other_and_the_rest_is_left():
    rows = windows(Text("t", "abcdefghij"), letters, 3, 9)
    assert ["".join(map(chr, row)) for row in rows.tolist()] == ["abc", "def", "ghi"]
    assert rows.dtype == torch.int64
    assert windows(Text("t", "abcdefghij"), letters, 3, 2).shape == (2, 3)


def test_long_texts_are_read_as_far_as_is_needed():
    """Pieces end with lines, a line that has no end is cut, and nothing is lost between them."""
    content = "x" * 200_000 + "\n" + "line\n" * 50_000
    seen = []

    def tokens(piece):
        seen.append(piece)
        return letters(piece)

    rows = windows(Text("t", content), tokens, 1000, 300)
    assert "".join(map(chr, rows.flatten().tolist())) == content[:300_000]
    assert "".join(seen) == content[: sum(map(len, seen))] and sum(map(len, seen)) < 400_000
    assert all(piece.endswith("\n") for piece in seen[3:])


@pytest.mark.parametrize(
    ("length", "count", "words"),
    [(1, 1, "at least 1 sequence of 2 tokens"), (2, 0, "found 0 of 2"), (9, 1, "t has 3 tokens")],
)
def test_too_little_is_refused(length, count, words):
    with pytest.raises(ValueError, match=words):
        windows(Text("t", "abc"), letters, length, count)
