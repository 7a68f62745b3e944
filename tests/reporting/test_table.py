# SPDX-License-Identifier: BSD-3-Clause
"""Tables for terminals and for pages."""

import pytest

from blockscale.reporting.table import Table, aligned, markdown


def test_markdown():
    table = Table("title", ("name", "size"), [("a", "1"), ("b", "20")])
    assert markdown(table) == "| name | size |\n| --- | --: |\n| a | 1 |\n| b | 20 |"
    assert markdown(Table("", ("a", "b"), [], left=2)) == "| a | b |\n| --- | --- |"


def test_aligned():
    text = aligned(("name", "n", "what"), [("a", "10", "x"), ("longer", "2", "")], " r")
    assert text.split("\n") == ["name     n  what", "a       10  x", "longer   2"]
    assert aligned(("a", "b"), []) == "a  b"


def test_rows_that_do_not_fit():
    with pytest.raises(IndexError):
        aligned(("a", "b"), [("1",)])


def test_cells_from_files_are_printable():
    text = aligned(("name",), [("\x1b[2J\u202e\n",), ("a" * 10**6,)])
    lines = text.split("\n")
    assert len(lines) == 3 and lines[1] == r"\x1b[2J\u202e\n" and len(lines[2]) < 1100
    assert all(line.isprintable() for line in lines)
